"""Makes every measured step 5 % longer, by a pause inside it.

Python imports this module at start where its folder is on PYTHONPATH.
"""

from __future__ import annotations

import time

from efficientbench.metrics import EfficiencyMonitor

SLOWER = 0.05

_begin_step, _end_step = EfficiencyMonitor.begin_step, EfficiencyMonitor.end_step
_begins_s: dict[int, float] = {}


def _begin(monitor: EfficiencyMonitor) -> None:
    _begin_step(monitor)
    _begins_s[id(monitor)] = time.perf_counter()


def _end(monitor: EfficiencyMonitor, tokens: int) -> float:
    time.sleep(SLOWER * (time.perf_counter() - _begins_s[id(monitor)]))
    return _end_step(monitor, tokens)


EfficiencyMonitor.begin_step = _begin  # type: ignore[method-assign]
EfficiencyMonitor.end_step = _end  # type: ignore[method-assign]
