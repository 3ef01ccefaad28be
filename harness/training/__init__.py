"""One run: the loop, training by folds, executors, checkpoints."""
