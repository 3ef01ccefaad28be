"""Configurations of runs, the files they are read from, and their execution."""
