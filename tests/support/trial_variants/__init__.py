"""Variants as somebody else would write them, outside the project: loaded as a package from `tests/support`."""
