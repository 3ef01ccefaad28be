"""From a configuration to a finished run: the loop, its executors, its checkpoints."""
