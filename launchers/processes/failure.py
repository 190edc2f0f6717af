"""Why a run as a whole ended before its time: what its launcher found out, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

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

    def order(self) -> tuple[int, float]:
        """Sorts the cause first: a hang, whose ranks are ended for it, what ended without a word, the earliest report.

        Ranks that merely lost another notice it later, live to report it, and say that they did.
        """
        if self.kind == "hung":
            return (0, self.time_s)
        if self.silent:
            return (1, self.time_s)
        return (3 if self.kind == "lost_rank" else 2, self.time_s)


def told(failure: Failure) -> dict[str, Any]:
    """As one node tells it to another: `kind` and `node` are the message's own."""
    return {("what" if name == "kind" else name): value for name, value in asdict(failure).items()}


def failure_from(message: Mapping[str, Any]) -> Failure:
    """What `told` told."""
    rank, step = message.get("rank"), message.get("step")
    return Failure(
        kind=kind_named(message.get("what")),
        rank=None if rank is None else int(rank),
        reason=str(message.get("reason")),
        exit_code=int(message.get("exit_code") or 1),
        step=None if step is None else int(step),
        node=int(message["node"]),
        time_s=float(message.get("time_s") or 0.0),
        silent=bool(message.get("silent")),
    )


def kind_named(name: object) -> Kind:
    """The kind of this name; `crash` for one that is not known."""
    return next((kind for kind in get_args(Kind) if kind == name), "crash")
