"""The errors of this package."""


class GenerationError(RuntimeError):
    """A model computed something from which no token can be chosen; the message is for the user."""


class LackOfMemoryError(RuntimeError):
    """A batch does not fit into memory; the message names the largest that does."""
