"""Numbers with their nouns and durations with their units, as messages need them."""

from __future__ import annotations


def number_of(number: int, noun: str) -> str:
    """Return a number with its noun, as 1 rank, 2,048 ranks or 2 micro-batches."""
    plural = "es" if noun.endswith("batch") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def seconds(time_s: float) -> str:
    """Format a duration in the unit that suits its size."""
    whole = round(time_s)
    if time_s < 9.5:
        return f"{time_s:.2g} s"
    if whole < 120:
        return f"{time_s:.0f} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole / 86400:.1f} days"
