"""Algorithms beyond the papers, compared on two shipped clusters: docs/algorithms.md."""
