"""Measures how efficiently a training loop uses its devices. Free-standing: fits any loop, needs no harness."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metrics.aggregate import merge
    from metrics.description import describe
    from metrics.errors import MetricsError
    from metrics.monitor import EfficiencyMonitor
    from metrics.sensors.allocator import AllocatorSensor
    from metrics.sensors.host import HostSensor
    from metrics.sensors.nvml import NvmlSensor
    from metrics.sensors.rapl import RaplSensor
    from metrics.sensors.replay import RecordingSensor, ReplaySensor
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

_MODULES = {
    "AllocatorSensor": "metrics.sensors.allocator",
    "EfficiencyCallback": "metrics.trainer_callback",
    "EfficiencyMonitor": "metrics.monitor",
    "HostSensor": "metrics.sensors.host",
    "MetricsError": "metrics.errors",
    "NvmlSensor": "metrics.sensors.nvml",
    "RaplSensor": "metrics.sensors.rapl",
    "RecordingSensor": "metrics.sensors.replay",
    "ReplaySensor": "metrics.sensors.replay",
    "describe": "metrics.description",
    "merge": "metrics.aggregate",
}


def __getattr__(name: str) -> Any:
    """Each is loaded when asked for: a report needs no sensors, and the callback alone needs torch."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
