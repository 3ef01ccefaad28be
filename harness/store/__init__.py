"""Append-only results, addressed by configuration hash."""
