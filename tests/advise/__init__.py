"""`lagbench.advise` beside an exhaustive grid of the same candidates."""
