"""Measures how efficiently a training loop uses its devices. Free-standing: fits any loop, needs no harness."""

from metrics.aggregate import merge
from metrics.errors import MetricsError
from metrics.monitor import EfficiencyMonitor
from metrics.sensors.allocator import AllocatorSensor
from metrics.sensors.host import HostSensor
from metrics.sensors.nvml import NvmlSensor
from metrics.sensors.rapl import RaplSensor

__all__ = ["AllocatorSensor", "EfficiencyMonitor", "HostSensor", "MetricsError", "NvmlSensor", "RaplSensor", "merge"]
