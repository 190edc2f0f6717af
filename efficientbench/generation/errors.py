"""The error of this package."""


class GenerationError(RuntimeError):
    """A model computed something from which no token can be chosen; the message is for the user."""
