"""Errors, settings with limits, seeds and identities, files and processes, used by all packages."""
