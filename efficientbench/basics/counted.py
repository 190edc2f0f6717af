"""Numbers with their nouns, as messages need them."""

from __future__ import annotations


def number_of(number: int, noun: str) -> str:
    """Return a number with its noun, as 1 rank, 2,048 ranks or 2 micro-batches."""
    plural = "es" if noun.endswith("batch") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"
