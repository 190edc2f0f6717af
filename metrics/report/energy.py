"""Energy two ways: by J/token, which is what energies are compared by, and by AEC, the paper's mean power."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.headline import name, relative_interval


@dataclass(frozen=True)
class Ranked:
    """A run's two places among the runs it was ranked with, 1 for the least."""

    record: RunRecord
    by_token: int
    by_power: int
    tied_by_token: bool
    """Whether it differs from the run one place before by less than the noise of their steps."""
    tied_by_power: bool


def rank(records: Sequence[RunRecord]) -> list[Ranked]:
    """The runs that have both figures, by J/token. Ranks mean something among runs that can be compared."""
    measured = [record for record in records if _per_token(record) > 0 and _power(record) > 0]
    by_token = sorted(measured, key=_per_token)
    by_power = sorted(measured, key=_power)
    place = {id(record): index for index, record in enumerate(by_power)}
    ranked = []
    for index, record in enumerate(by_token):
        other = place[id(record)]
        cheaper, idler = by_token[max(index - 1, 0)], by_power[max(other - 1, 0)]
        tied_by_token = index > 0 and not _clear(_per_token(cheaper), _per_token(record), cheaper, record)
        tied_by_power = other > 0 and not _clear(_power(idler), _power(record), idler, record)
        ranked.append(Ranked(record, index + 1, other + 1, tied_by_token, tied_by_power))
    return ranked


def disagreements(records: Sequence[RunRecord]) -> list[str]:
    """One sentence for each run that AEC ranks ahead of others whose tokens clearly cost less energy."""
    ranked = [item.record for item in rank(records)]
    per_token, power, noise = (
        np.array([figure(record) for record in ranked]) for figure in (_per_token, _power, _noise)
    )
    found = []
    for index, idle in enumerate(ranked):
        margin = 1 + (noise[:index] + noise[index])
        only_idles = (per_token[:index] * margin < per_token[index]) & (power[index] * margin < power[:index])
        ahead = [ranked[other] for other in np.flatnonzero(only_idles)]
        if not ahead:
            continue
        times = [_per_token(idle) / _per_token(other) for other in ahead]
        most = f"{min(times):.2f} to {max(times):.2f}" if len(times) > 1 else f"{times[0]:.2f}"
        others = ", ".join(f"{name(other)} ({_power(other):,.0f} W)" for other in ahead)
        found.append(
            f"AEC ranks {name(idle)} ({_power(idle):,.0f} W) ahead of {others}, J/token behind: a token costs it "
            f"{most} times as much energy."
        )
    return found


def _clear(less: float, more: float, one: RunRecord, other: RunRecord) -> bool:
    """Whether `less` is below `more` by more than the noise of both runs' step times."""
    return less * (1 + (_noise(one) + _noise(other))) < more


def _noise(record: RunRecord) -> float:
    """Of the run's step times, relative; noise that is not known may be of any size."""
    noise = relative_interval(record)
    return math.inf if noise is None else noise


def _per_token(record: RunRecord) -> float:
    return record.energy_j_per_token or 0.0


def _power(record: RunRecord) -> float:
    return record.aec_w or 0.0
