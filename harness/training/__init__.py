"""Training of one run: the loop, training by folds, executors, checkpoints."""
