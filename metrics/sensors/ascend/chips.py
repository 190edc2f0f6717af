"""What both ways of reading Ascend NPUs share: which chips are visible, and which way there is.

Written from Huawei's documentation and from other projects' use of it; never run on an NPU.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.sensors.base import Sensor

NO_COUNTER = "an Ascend NPU has no energy counter: power is polled and integrated"
NO_REGISTER = "an Ascend NPU keeps no such register"
NO_ALLOCATOR = "the driver does not know torch's allocator"


MOST_WATTS = 5000.0
"""No Ascend card takes as much: a driver that says so says nothing."""


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
    """The driver's library where it is installed and knows cards, else its command-line tool.

    Args:
        indices: the devices by their place among the visible ones, as torch counts them; all by default.
        pids: the run's processes on this machine, this one by default.
    """
    from efficientbench.metrics.sensors.ascend.dcmi import DcmiSensor
    from efficientbench.metrics.sensors.ascend.dcmi_library import serves
    from efficientbench.metrics.sensors.ascend.npu_smi import NpuSmiSensor

    return DcmiSensor(indices, pids=pids) if serves() else NpuSmiSensor(indices)


def choose_chips(
    chips: Sequence[Chip], indices: Sequence[int] | None, environment: Mapping[str, str] = os.environ
) -> list[Chip]:
    """The chips that ASCEND_RT_VISIBLE_DEVICES leaves visible, and of them those at `indices`.

    The variable holds logical ids, separated by commas alone; the first character that is neither ends the list, and
    so does an id that no chip has (CANN, environment variables, "ASCEND_RT_VISIBLE_DEVICES"). In a container that was
    given one die of an A3's card the driver lists the other, too, with the logical id 0 that it never set
    (github.com/hicann/driver, dcmi_init_for_server.c): no NPU of its own.

    Raises:
        MetricsError: nothing is left, or there is no such index.
    """
    by_id = {chip.logic_id: chip for chip in reversed(chips)}  # the first of an id stays
    listed = environment.get("ASCEND_RT_VISIBLE_DEVICES")
    visible = [by_id[logic_id] for logic_id in sorted(by_id)]
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


def card_power_w(power_w: float | None, dies: Sequence[Chip], measured: Sequence[Chip]) -> float | None:
    """One die's part of a reading that is of its whole card: an equal one, so that the dies' sum is the reading.

    Args:
        power_w: of the card.
        dies: all NPUs of the card.
        measured: the NPUs that a sensor reads.

    Raises:
        MetricsError: not all dies are measured, so that nobody can tell what part of the power is theirs.
    """
    missing = [die for die in dies if die not in measured]
    if missing:
        raise MetricsError(
            f"card {dies[0].card} gives one power for its {len(dies)} NPUs, of which this measurement has "
            f"{len(dies) - len(missing)}"
        )
    return None if power_w is None else power_w / len(dies)


class Doubt:
    """Refuses values that cannot be; a quantity of which nothing else came is unavailable, with the value as reason."""

    def __init__(self, unavailable: dict[str, str]) -> None:
        self._unavailable = unavailable
        self._doubted: set[str] = set()

    def checked(self, quantity: str, value: float | None, highest: float, device: str) -> float | None:
        """`value` where it lies between 0 and `highest`, in the quantity's own unit, else None."""
        if value is not None and 0 <= value <= highest:
            if quantity in self._doubted:
                self._doubted.remove(quantity)
                del self._unavailable[quantity]
            return value
        if value is not None and quantity not in self._unavailable:
            self._doubted.add(quantity)
            self._unavailable[quantity] = f"the driver's answer for {device} cannot be: {value:g} (at most {highest:g})"
        return None

    def rules_out(self, quantity: str) -> bool:
        """Whether a quantity need not be asked for: it is known to be unavailable, and not merely doubted."""
        return quantity in self._unavailable and quantity not in self._doubted
