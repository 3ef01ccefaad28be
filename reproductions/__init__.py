"""Papers, declared: experiments, reported figures, claims and exhibits; no machinery."""
