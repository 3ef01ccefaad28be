"""Training data of tasks: which rows, dealt to which worker, in which order."""
