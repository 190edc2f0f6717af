"""Whether the ranks of a run still get on, and if not, which of them the others wait for."""

from __future__ import annotations

import time
from collections.abc import Mapping

from efficientbench.launchers.processes.liveness import STARTS, Sign

START_S = 300.0
"""What loading libraries may take on a slow file system."""
SILENT_S = 3.0
"""A rank that has given no sign of life for so long is itself stopped."""

Signs = Mapping[int, Sign | None]
"""Rank → its last sign of life; None for one that has given none."""


class HangWatch:
    """Sees when no rank of a node gets on any more."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._seen: object = None
        self._since_s = time.monotonic()

    def is_stuck(self, signs: Signs) -> bool:
        """Whether steps, phases and collectives of all ranks have stayed the same for the limit.

        Ranks that load their libraries wait for nobody, and get the time that takes.
        """
        seen = {rank: (sign.step, sign.phase, sign.collectives) if sign else None for rank, sign in signs.items()}
        if seen != self._seen:
            self._seen, self._since_s = seen, time.monotonic()
        starting = any(sign is None or sign.phase == STARTS for sign in signs.values())
        return time.monotonic() - self._since_s > (max(self.limit_s, START_S) if starting else self.limit_s)


def describe_hang(signs: Signs, absent: Mapping[int, str], limit_s: float) -> tuple[int | None, str]:
    """The first rank that did not arrive, and what to tell people of all that did not.

    Args:
        signs: of every rank that can still give one.
        absent: rank → why it can give none.
        limit_s: for how long no rank got on.
    """
    silent = [rank for rank, sign in signs.items() if sign is None or sign.age_s > SILENT_S]
    found = {**absent, **{rank: _told(signs[rank]) for rank in silent}}
    # Those that still give signs say who waits for whom.
    found = found or {rank: _told(signs[rank]) for rank in _waited_for(signs)}
    hung = f"hung: no rank got on for {limit_s:g} s"
    if not found:
        where = "; ".join(f"rank {rank}: {_told(sign)}" for rank, sign in sorted(signs.items()))
        return None, f"{hung}, and all wait for each other ({where})"
    if len(found) == 1:
        ((rank, told),) = found.items()
        return rank, f"{hung}; rank {rank} did not arrive ({told})"
    names = ", ".join(map(str, sorted(found)))
    told = "; ".join(f"rank {rank}: {found[rank]}" for rank in sorted(found))
    return min(found), f"{hung}; ranks {names} did not arrive ({told})"


def _waited_for(signs: Signs) -> list[int]:
    """The ranks that the others wait for, by the clearest evidence that there is."""
    given = {rank: sign for rank, sign in signs.items() if sign is not None}
    behind = _behind(given)
    if behind:
        return behind
    busy = [rank for rank, sign in given.items() if not sign.waits]
    if 0 < len(busy) < len(given):
        return busy
    steps = {sign.step for sign in given.values()}
    return [rank for rank, sign in given.items() if sign.step == min(steps)] if len(steps) > 1 else []


def _behind(signs: Mapping[int, Sign]) -> list[int]:
    """The ranks that have begun fewer collectives than others of some process group, and more in none.

    One that waits for a rank of one group falls behind in its other groups; but it is ahead of the one it waits for.
    """
    counts: dict[str, dict[int, int]] = {}
    for rank, sign in signs.items():
        for group, count in sign.collectives.items():
            counts.setdefault(group, {})[rank] = count
    lags = {rank for group in counts.values() for rank, count in group.items() if count < max(group.values())}
    leads = {rank for group in counts.values() for rank, count in group.items() if count > min(group.values())}
    return sorted(lags - leads)


def _told(sign: Sign | None) -> str:
    if sign is None:
        return "gave no sign of life"
    place = f"in step {sign.step}, {sign.phase}" if sign.step else sign.phase
    where = f" at {sign.where}" if sign.where else ""
    silence = f", silent for {sign.age_s:.0f} s" if sign.age_s > SILENT_S else ""
    return f"{place}{where}{silence}{f', {sign.process}' if sign.process else ''}"
