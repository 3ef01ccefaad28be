"""What is trained: networks over the replica stack, hidden Markov models, scoring."""
