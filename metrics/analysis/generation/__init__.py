"""Comparisons of measured generations."""
