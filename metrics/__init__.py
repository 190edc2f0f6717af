"""Measures how efficiently a training loop uses its devices. Free-standing: fits any loop, needs no harness."""

from typing import TYPE_CHECKING, Any

from metrics.aggregate import merge
from metrics.describe import describe
from metrics.errors import MetricsError
from metrics.monitor import EfficiencyMonitor
from metrics.sensors.allocator import AllocatorSensor
from metrics.sensors.host import HostSensor
from metrics.sensors.nvml import NvmlSensor
from metrics.sensors.rapl import RaplSensor
from metrics.sensors.replay import RecordingSensor, ReplaySensor

if TYPE_CHECKING:
    from metrics.trainer_callback import EfficiencyCallback

__all__ = [
    "AllocatorSensor",
    "EfficiencyCallback",
    "EfficiencyMonitor",
    "HostSensor",
    "MetricsError",
    "NvmlSensor",
    "RaplSensor",
    "RecordingSensor",
    "ReplaySensor",
    "describe",
    "merge",
]


def __getattr__(name: str) -> Any:
    """The callback is loaded when asked for: it needs torch and transformers, the rest neither."""
    if name == "EfficiencyCallback":
        from metrics.trainer_callback import EfficiencyCallback

        return EfficiencyCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
