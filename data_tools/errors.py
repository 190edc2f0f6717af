"""The one error of this package that is meant for people."""

from __future__ import annotations


class DataError(ValueError):
    """Data that cannot be used. `str()` is the whole message: what is wrong, where (file:line), what would be right."""


def first_line(error: BaseException) -> str:
    """What a foreign error says, short enough for a message of one line."""
    return str(error).strip().split("\n")[0] or type(error).__name__
