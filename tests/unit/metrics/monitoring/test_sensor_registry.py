"""One registry of sensors, by device type."""

from __future__ import annotations

from efficientbench.devices.registry import all_devices
from efficientbench.metrics import HostSensor, NvmlSensor, RaplSensor
from efficientbench.metrics.monitoring.sensor_registry import SENSORS, device_sensors
from efficientbench.metrics.sensors.ascend.dcmi import DcmiSensor


def test_each_device_type_has_its_sensors() -> None:
    assert SENSORS.keys() == {device.type for device in all_devices()}
    found = [[type(sensor) for sensor in device_sensors(device.type)] for device in all_devices()]
    assert found == [[NvmlSensor], [DcmiSensor], [HostSensor, RaplSensor]]
    assert device_sensors("a type that nothing reads") == []
