"""An experiment, and how it is run: one, or many on an executor."""
