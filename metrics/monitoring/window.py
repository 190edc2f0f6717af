"""Measures one piece of work by name, in three lines.

with measure("prefill") as prefill:
    model(prompt)
print(prefill.time_s, prefill.energy_j, prefill.summary)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.monitoring.aggregate import merge
from efficientbench.metrics.monitoring.measurement import RunMeasurement, table_of
from efficientbench.metrics.monitoring.monitor import EfficiencyMonitor
from efficientbench.metrics.sensors.base import Sensor


@dataclass
class MeasuredWindow:
    """What `measure` found; each property raises MetricsError before the window has ended."""

    name: str
    _run: RunMeasurement | None = field(default=None, repr=False)

    @property
    def run(self) -> RunMeasurement:
        """Return the whole measurement, in which `unavailable` has the reason for each figure that is None."""
        if self._run is None:
            raise MetricsError(f"the window {self.name!r} is measured once its block has ended")
        return self._run

    @property
    def time_s(self) -> float:
        """Return the wall time from one device synchronize to the next, s."""
        return self.run.step_times_s[0]

    @property
    def energy_j(self) -> float | None:
        """Return the energy of all devices of this process, J; None: `run.unavailable['energy_j']` has the reason."""
        return self.run.energy_j

    @property
    def summary(self) -> str:
        """Return time, memory, utilization and energy in a line each; 'n/a' and the reason if absent."""
        return table_of(self.run, {"window": self.name, "time": f"{self.time_s:,.4g} s"})


@contextmanager
def measure(name: str, sensors: Sequence[Sensor] | None = None) -> Iterator[MeasuredWindow]:
    """Measure one block of code by name; a block that raises has no result.

    Each window has a monitor of its own, which opens the sensors before the block: a loop of many steps is measured by
    one `EfficiencyMonitor`. Windows may overlap, and a window may lie within a monitor's step.

    Args:
        name: the window's name in `summary`.
        sensors: what to sample; by default those of this process's accelerator, else of the host.
    """
    window, monitor = MeasuredWindow(name), EfficiencyMonitor(sensors)
    with monitor, monitor.step(tokens=0):
        yield window
    window._run = merge([monitor.finish()])
