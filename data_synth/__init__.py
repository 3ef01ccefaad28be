"""Corpora with known truth, and recorded ones in the same type."""
