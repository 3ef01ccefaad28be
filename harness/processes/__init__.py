"""Training on real processes: messages, groups, servers and workers, and their record."""
