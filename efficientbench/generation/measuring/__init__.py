"""Measure what generation costs."""
