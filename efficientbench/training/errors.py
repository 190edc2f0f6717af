"""Errors whose message is for the user."""


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
