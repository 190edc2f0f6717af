"""The error that users see."""

from __future__ import annotations


class DataError(ValueError):
    """Data cannot be used. The message says what is wrong, where (file:line), and what would be right."""


def first_line(error: BaseException) -> str:
    """Return the first line of a foreign error's message."""
    return str(error).strip().split("\n")[0] or type(error).__name__
