"""Paper 1: asynchronous averaged SGD (You and Xu)."""
