"""The lengths at which a long context is tried."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.basics.errors import ConfigError
from efficientbench.config.schema import RunConfig

BEYOND = 2
"""The longest default length, as a multiple of the trained length."""


def read_lengths(text: str | None) -> tuple[int, ...]:
    """Return the lengths in a list like `2048,4096`, ascending; none for None.

    Raises:
        ConfigError: an entry is not a whole number above 1.
    """
    if text is None:
        return ()
    words = [word.strip().replace("_", "") for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and int(word) > 1 for word in words):
        raise ConfigError(f"--lengths {text}: numbers of tokens from 2 on are needed, like 2048,4096")
    return tuple(sorted({int(word) for word in words}))


def choose_lengths(config: RunConfig, asked: Sequence[int] = ()) -> list[int]:
    """Return lengths in tokens: those that are asked for, else a quarter to twice the trained length.

    Raises:
        ConfigError: a length that is asked for exceeds the model's positions.
    """
    longest, trained = config.model.position.longest, config.training.seq_len
    for length in asked:
        if longest is not None and length > longest:
            raise ConfigError(
                f"--lengths {length}: the model has {longest:,} positions (model.position.kind="
                f"{config.model.position.kind})"
            )
    found = list(asked) or [max(trained // 4, 1), max(trained // 2, 1), trained, BEYOND * trained]
    return [length for length in dict.fromkeys(found) if longest is None or length <= longest]
