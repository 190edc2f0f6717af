"""The project's errors, and the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class DataError(ValueError):
    """Data cannot be used. The message says what is wrong, where (file:line), and what would be right."""


def first_line(error: BaseException) -> str:
    """Return the first line of a foreign error's message."""
    return str(error).strip().split("\n")[0] or type(error).__name__


@contextmanager
def os_errors_as(kind: type[Exception], what: str) -> Iterator[None]:
    """Raise an error of a kind for an OSError of the body: `what` went wrong, and the system's reason in brackets."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what} ({error.strerror})") from None


class MetricsError(ValueError):
    """A figure or file cannot be measured, read or written; `str()` is the complete message for the user."""


class LaunchError(RuntimeError):
    """Processes cannot be started as asked; `str()` is the complete message for the user."""


class GenerationError(RuntimeError):
    """A model's logits or losses are not finite; the message is for the user."""


class LackOfMemoryError(RuntimeError):
    """A batch does not fit into memory; the message names the largest batch that fits."""


class EvaluationError(RuntimeError):
    """An evaluation cannot continue; the message is for the user."""


FULL_BYTES = 1 << 20
"""Free space below which a disk counts as full after a failed write."""


class TrainingError(ValueError):
    """The run cannot train as configured."""


class NonFiniteError(RuntimeError):
    """Loss or gradients are not finite, and training cannot continue."""

    def __init__(self, message: str, step: int, rank: int) -> None:
        """`rank`: the first rank whose loss or gradients are not finite."""
        super().__init__(message)
        self.step, self.rank = step, rank


class CheckpointError(TrainingError):
    """A checkpoint is damaged, or no run can resume from it."""


class ConfigError(ValueError):
    """One or more mistakes in a configuration; `str()` is the complete message for the user."""

    problems: tuple[str, ...]
    """One line or short block for each mistake: the key, what is wrong, and what would be right."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        if len(self.problems) == 1:
            message = self.problems[0]
        else:
            message = "\n  ".join([f"{len(self.problems)} problems:", *self.problems])
        super().__init__(message)


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name most similar to `name`, ignoring case, or None if none is similar."""
    by_lower = {each.lower(): each for each in valid}
    # A user's name may be long, and the search's time grows with its length.
    found = difflib.get_close_matches(name[:200].lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, valid: Iterable[str], otherwise: str) -> str:
    """Return the hint of a message on an unknown name: the nearest valid name, or `otherwise` if none is similar."""
    near = nearest(name, valid)
    return f"did you mean {near}?" if near else otherwise
