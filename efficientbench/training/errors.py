"""Errors whose message is for the user."""


class TrainingError(ValueError):
    """The run cannot train as configured."""
