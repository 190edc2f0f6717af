"""Errors of training whose message is for the user."""

FULL_BYTES = 1 << 20
"""A disk with less space left counts as full when writing has failed."""


class TrainingError(ValueError):
    """The run cannot train as configured."""


class NonFiniteError(RuntimeError):
    """Loss or gradients are not finite, and training cannot continue."""

    def __init__(self, message: str, step: int, rank: int) -> None:
        """`rank`: the first one on which they are not finite."""
        super().__init__(message)
        self.step, self.rank = step, rank


class CheckpointError(TrainingError):
    """A checkpoint is damaged, or no run can resume from it."""
