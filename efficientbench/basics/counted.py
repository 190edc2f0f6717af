"""Numbers with their nouns, as messages need them."""

from __future__ import annotations


def number_of(number: int, noun: str) -> str:
    """Return a number with its noun, as 1 rank or 2,048 ranks."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
