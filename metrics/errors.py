"""Defines the one error class of this package."""


class MetricsError(ValueError):
    """Something that cannot be measured, read or written; `str()` is the whole message for the user."""
