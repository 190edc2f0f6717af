"""A processor's energy meter of plain files, which a run reads by RAPL's sensor; one kind of work spends joules."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType

from support.repository import ROOT

from efficientbench.data_tools.chat.task import Example
from efficientbench.metrics.monitoring.sensor_registry import SENSORS
from efficientbench.metrics.sensors.host import HostSensor
from efficientbench.metrics.sensors.rapl import RaplSensor

SPENT_J = 3
"""By each answer, or by each update."""
COUNTER, SPENDS = "MADE_UP_METER", "MADE_UP_METER_SPENDS"
"""Environment variables: the path of the counter, and what spends joules, `rollouts` or `updates`."""


def lay_out(folder: Path, spends: str) -> dict[str, str]:
    """Write the meter, and return the environment in which a run reads it instead of the machine's."""
    counter = folder / "powercap" / "intel-rapl:0" / "energy_uj"
    counter.parent.mkdir(parents=True)
    counter.write_text(f"{0:020d}")
    counter.with_name("name").write_text("package-0")
    counter.with_name("max_energy_range_uj").write_text(str(10**18))
    (folder / "sitecustomize.py").write_text("from replicas import made_up_meter\n\nmade_up_meter.be_read()\n")
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", folder)))
    return {"PYTHONPATH": path, COUNTER: str(counter), SPENDS: spends}


def be_read() -> None:
    """Let this process read the meter."""
    root = Path(os.environ[COUNTER]).parent.parent
    SENSORS["cpu"] = lambda indices, pids: [HostSensor(pids), RaplSensor(root)]


def length(example: Example, completion: str) -> float:
    """Reward long answers, and let them or the updates that follow spend joules."""
    if os.environ[SPENDS] == "rollouts":
        _spend()
    else:
        sys.setprofile(_spend_at_update)
    return len(completion)


def _spend_at_update(frame: FrameType, event: str, argument: object) -> None:
    # An update takes its micro-batches.
    if event == "call" and frame.f_code.co_name == "training_step":
        _spend()


def _spend() -> None:
    # At once and of one length: the sensor reads meanwhile.
    with Path(os.environ[COUNTER]).open("r+") as counter:
        grown_uj = int(counter.read()) + SPENT_J * 10**6
        counter.seek(0)
        counter.write(f"{grown_uj:020d}")
