"""Searches for the best learning rate, and for the value at which training breaks."""
