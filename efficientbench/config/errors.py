"""What is wrong with a configuration, said to the person who wrote it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class ConfigError(ValueError):
    """One or more mistakes in a configuration; `str()` is the whole message for the user.

    `problems` holds one line (or short block) for each mistake, each naming the key, what is wrong and what would be
    right.
    """

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        if len(self.problems) == 1:
            message = self.problems[0]
        else:
            message = "\n  ".join([f"{len(self.problems)} problems:", *self.problems])
        super().__init__(message)


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that looks most like `name`, whatever its case; None when nothing is near."""
    by_lower = {each.lower(): each for each in valid}
    found = difflib.get_close_matches(name[:200].lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None
