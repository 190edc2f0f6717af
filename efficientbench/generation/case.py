"""One row of a measurement of generation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One row of a measurement."""

    prompt_tokens: int
    batch: int
    max_new_tokens: int
    """2 or more: the first comes with the prefill."""

    @property
    def tokens(self) -> int:
        """Return the tokens of a sequence at its end."""
        return self.prompt_tokens + self.max_new_tokens
