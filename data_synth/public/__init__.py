"""Recorded corpora that are published for download."""
