"""Rates and tolerances: which value is best, and which breaks."""
