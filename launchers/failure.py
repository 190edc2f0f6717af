"""Why a run as a whole ended before its time: what its launcher found out, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["out_of_memory", "non_finite", "hung", "lost_rank", "full_disk", "mistake", "crash", "stopped"]
"""`lost_rank`: a process that ended without a word; reported by a rank itself: it lost another one, which is the cause.
`mistake`: the user's to mend. `stopped`: asked to, by a signal. `crash`: any other error."""


@dataclass(frozen=True)
class Failure:
    """One end before its time."""

    kind: Kind
    rank: int | None
    """None where it is no single rank's."""
    reason: str
    exit_code: int
    """What the whole ends with."""
    step: int | None = None
    node: int = 0
    time_s: float = 0.0
    """When, in seconds since the epoch."""
    silent: bool = False
    """Whether the process ended without a word: killed, or crashed."""

    def order(self) -> tuple[bool, bool, float]:
        """Sorts the cause first: what ended without a word, then the earliest report.

        Ranks that merely lost another notice it later, live to report it, and say that they did.
        """
        return (self.kind == "lost_rank" and not self.silent, not self.silent, self.time_s)


def kind_named(name: object) -> Kind:
    """The kind of this name; `crash` for one that is not known."""
    return next((kind for kind in get_args(Kind) if kind == name), "crash")
