"""Errors whose message is for the user."""

FULL_BYTES = 1 << 20
"""A disk with less space left than this is taken for full when writing has failed."""


class TrainingError(ValueError):
    """The run cannot train as configured."""


class NonFiniteError(RuntimeError):
    """Loss or gradients that are not finite: training cannot go on from them."""

    def __init__(self, message: str, step: int, rank: int) -> None:
        """`rank`: the first on which they are not."""
        super().__init__(message)
        self.step, self.rank = step, rank


class CheckpointError(TrainingError):
    """A checkpoint that is damaged, or cannot be gone on from."""
