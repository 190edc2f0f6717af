"""Measures how efficiently a training loop uses its devices; fits any loop and needs no harness."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from efficientbench.basics.errors import MetricsError
    from efficientbench.metrics.monitoring.aggregate import merge
    from efficientbench.metrics.monitoring.measurement import describe
    from efficientbench.metrics.monitoring.window import measure
    from efficientbench.metrics.records.loop_monitor import EfficiencyMonitor
    from efficientbench.metrics.records.trainer_callback import EfficiencyCallback
    from efficientbench.metrics.sensors.allocator import AllocatorSensor
    from efficientbench.metrics.sensors.host import HostSensor
    from efficientbench.metrics.sensors.nvml import NvmlSensor
    from efficientbench.metrics.sensors.rapl import RaplSensor
    from efficientbench.metrics.sensors.replay import RecordingSensor, ReplaySensor

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
    "measure",
    "merge",
]

_MODULES = {
    "AllocatorSensor": "efficientbench.metrics.sensors.allocator",
    "EfficiencyCallback": "efficientbench.metrics.records.trainer_callback",
    "EfficiencyMonitor": "efficientbench.metrics.records.loop_monitor",
    "HostSensor": "efficientbench.metrics.sensors.host",
    "MetricsError": "efficientbench.basics.errors",
    "NvmlSensor": "efficientbench.metrics.sensors.nvml",
    "RaplSensor": "efficientbench.metrics.sensors.rapl",
    "RecordingSensor": "efficientbench.metrics.sensors.replay",
    "ReplaySensor": "efficientbench.metrics.sensors.replay",
    "describe": "efficientbench.metrics.monitoring.measurement",
    "measure": "efficientbench.metrics.monitoring.window",
    "merge": "efficientbench.metrics.monitoring.aggregate",
}


def __getattr__(name: str) -> Any:
    """Load a name at its first use: a report needs no sensors, and the callback alone needs torch."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
