"""Timing protocols, one per file: the rules by which workers and server wait for each other."""
