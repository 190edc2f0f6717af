"""A meter outside this project, as its user would write it: an outlet that counts 50 W."""

import time

from efficientbench.metrics.sensors.base import Counters, DeviceInfo, Meter, Sample

POWER_W = 50.0


class Outlet(Meter):
    """The outlet that feeds the machine."""

    def open(self) -> None:
        self._begin_s = time.monotonic()

    def devices(self) -> list[DeviceInfo]:
        return [DeviceInfo("OUTLET-7", "outlet 7", None, "none")]

    def sample(self, time_s: float) -> list[Sample]:
        return [Sample(time_s, "OUTLET-7", power_w=POWER_W)]

    def counters(self) -> dict[str, Counters]:
        return {"OUTLET-7": Counters(energy_j=POWER_W * (time.monotonic() - self._begin_s))}
