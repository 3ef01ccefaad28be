"""Recorded corpora that anyone can download."""
