"""What a sensor can measure on this machine, without measuring."""

from __future__ import annotations

from efficientbench.metrics.monitoring.measurement import SensorState
from efficientbench.metrics.sensors.base import QUANTITIES, Sensor


def examine(sensor: Sensor) -> SensorState:
    """Open and close a sensor: what it can measure here, and why not the rest.

    A driver's binding may raise any type, hence the broad `except`, as where it is sampled.
    """
    try:
        sensor.open()
    except Exception as error:
        return SensorState(sensor.name, sensor.scope, f"{sensor.name}: {str(error) or type(error).__name__}")
    finally:
        sensor.close()
    measures = tuple(name for name in QUANTITIES if name not in sensor.unavailable)
    return SensorState(sensor.name, sensor.scope, None, measures, dict(sensor.unavailable))
