"""Declarations of papers: experiments, reported figures, claims and exhibits."""
