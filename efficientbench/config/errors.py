"""The error for mistakes in a configuration, and the nearest right name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class ConfigError(ValueError):
    """One or more mistakes in a configuration; `str()` is the whole message for the user."""

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
    """Return the valid name that is most like `name` in any case, or None when none is similar."""
    by_lower = {each.lower(): each for each in valid}
    # Names of users may be long, and the search takes time that grows with their length.
    found = difflib.get_close_matches(name[:200].lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None
