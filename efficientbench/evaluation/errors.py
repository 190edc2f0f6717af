"""The error of this package."""


class EvaluationError(RuntimeError):
    """An evaluation cannot go on; the message is for the user."""
