"""Walking a timeline: contributions at the parameters their workers had read."""
