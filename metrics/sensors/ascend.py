"""What both ways of reading Ascend NPUs share: which chips are visible, and which way there is.

Written from Huawei's documentation and from other projects' use of it; never run on an NPU.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metrics.errors import MetricsError
from metrics.sensors.base import Sensor

NO_COUNTER = "an Ascend NPU has no energy counter: power is polled and integrated"
NO_REGISTER = "an Ascend NPU keeps no such register"
NO_ALLOCATOR = "the driver does not know torch's allocator"


@dataclass(frozen=True)
class Chip:
    """One NPU as the driver's tools address it."""

    card: int
    chip: int
    """In its card: most have one, those of an A3 two."""
    logic_id: int
    """As applications count them."""
    name: str = "Ascend NPU"


def ascend_sensor(indices: Sequence[int] | None = None, pids: Sequence[int] | None = None) -> Sensor:
    """The driver's library where it is installed, else its command-line tool.

    Args:
        indices: the devices by their place among the visible ones, as torch counts them; all by default.
        pids: the run's processes on this machine, this one by default.
    """
    from metrics.sensors.dcmi import DcmiSensor, find_library
    from metrics.sensors.npu_smi import NpuSmiSensor

    return NpuSmiSensor(indices) if find_library() is None else DcmiSensor(indices, pids=pids)


def choose_chips(
    chips: Sequence[Chip], indices: Sequence[int] | None, environment: Mapping[str, str] = os.environ
) -> list[Chip]:
    """The chips that ASCEND_RT_VISIBLE_DEVICES leaves visible, and of them those at `indices`.

    The variable holds logical ids, separated by commas alone; the first character that is neither ends the list, and
    so does an id that no chip has (CANN, environment variables, "ASCEND_RT_VISIBLE_DEVICES").

    Raises:
        MetricsError: nothing is left, or there is no such index.
    """
    by_id = {chip.logic_id: chip for chip in chips}
    listed = environment.get("ASCEND_RT_VISIBLE_DEVICES")
    visible = sorted(chips, key=lambda chip: chip.logic_id)
    if listed is not None:
        visible = []
        for text in (re.match(r"[\d,]*", listed) or [""])[0].split(","):
            if not text or int(text) not in by_id:
                break
            visible.append(by_id[int(text)])
    if not visible:
        raise MetricsError(f"no NPU is visible to this process (ASCEND_RT_VISIBLE_DEVICES={listed})")
    missing = [i for i in indices or () if not 0 <= i < len(visible)]
    if missing:
        raise MetricsError(f"device {missing[0]} is not among the {len(visible)} visible NPUs ({listed=})")
    return visible if indices is None else [visible[i] for i in indices]
