"""Rows of a file as examples of a prompt and its answer."""
