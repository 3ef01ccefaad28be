"""Errors, settings with limits, seeds and identities, files, processes: the ground of all rooms."""
