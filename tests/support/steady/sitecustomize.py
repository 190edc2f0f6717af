"""Fills every measured step up to `STEP_S` seconds by a pause, as on a machine whose speed does not vary.

Python imports this module at start where its folder is on PYTHONPATH.
"""

from __future__ import annotations

import os
import time

from efficientbench.metrics import EfficiencyMonitor

STEP_S = float(os.environ["STEP_S"])

_begin_step, _end_step = EfficiencyMonitor.begin_step, EfficiencyMonitor.end_step
_begins_s: dict[int, float] = {}


def _begin(monitor: EfficiencyMonitor) -> None:
    _begin_step(monitor)
    _begins_s[id(monitor)] = time.perf_counter()


def _end(monitor: EfficiencyMonitor, tokens: int) -> float:
    time.sleep(max(0.0, _begins_s[id(monitor)] + STEP_S - time.perf_counter()))
    return _end_step(monitor, tokens)


EfficiencyMonitor.begin_step = _begin  # type: ignore[method-assign]
EfficiencyMonitor.end_step = _end  # type: ignore[method-assign]
