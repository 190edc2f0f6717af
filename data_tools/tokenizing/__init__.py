"""Turns documents into tokens on disk."""
