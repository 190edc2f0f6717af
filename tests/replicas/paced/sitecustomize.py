"""Puts a pause into every measured step: `SLOWER` is its share of the step; `STEP_S` fills the step up to so long.

Python imports this module at start where its folder is on PYTHONPATH.
"""

from __future__ import annotations

import os
import time

from efficientbench.metrics import EfficiencyMonitor

SLOWER, STEP_S = (float(os.environ.get(name, "0")) for name in ("SLOWER", "STEP_S"))

_begin_step, _end_step = EfficiencyMonitor.begin_step, EfficiencyMonitor.end_step
_begins_s: dict[int, float] = {}


def _begin(monitor: EfficiencyMonitor) -> None:
    _begin_step(monitor)
    _begins_s[id(monitor)] = time.perf_counter()


def _end(monitor: EfficiencyMonitor, tokens: int) -> float:
    taken_s = time.perf_counter() - _begins_s[id(monitor)]
    time.sleep(max(SLOWER * taken_s, STEP_S - taken_s))
    return _end_step(monitor, tokens)


EfficiencyMonitor.begin_step = _begin  # type: ignore[method-assign]
EfficiencyMonitor.end_step = _end  # type: ignore[method-assign]
