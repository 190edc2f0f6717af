"""Finds the Ascend chips that a process sees, and divides a card's power among its chips.

Written from Huawei's documentation and from other projects' use of it; never run on an NPU.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from efficientbench.basics.errors import MetricsError


@dataclass(frozen=True)
class Chip:
    """One NPU as the driver addresses it."""

    card: int
    chip: int
    """Position on its card: most cards have one chip, an A3's have two."""
    logic_id: int
    """The chip's number as applications count chips."""


def choose_chips(
    chips: Sequence[Chip], indices: Sequence[int] | None, environment: Mapping[str, str] = os.environ
) -> list[Chip]:
    """Return the chips at `indices` among those that ASCEND_RT_VISIBLE_DEVICES leaves visible; None: all of them.

    The variable holds logical ids, separated by commas alone. Any other character ends the list, and so does an id that
    no chip has (CANN, environment variables, "ASCEND_RT_VISIBLE_DEVICES").

    Raises:
        MetricsError: no chip is visible, or no visible chip has one of the indices.
    """
    # In a container that was given one die of an A3's card, the driver lists the other die too, with the logical id 0
    # that it never set (github.com/hicann/driver, dcmi_init_for_server.c). Of equal ids the first is the right one.
    by_id = {chip.logic_id: chip for chip in reversed(chips)}
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


def chip_power_w(card_power_w: float | None, chips: Sequence[Chip], measured: Sequence[Chip]) -> float | None:
    """Return one chip's share of its card's power, W: all shares are equal, so that their sum is the card's reading.

    Args:
        card_power_w: the card's power; None if it has no reading.
        chips: all chips of the card.
        measured: the chips that a sensor reads.

    Raises:
        MetricsError: not all chips of the card are measured, so that their share of the power is unknown.
    """
    missing = [chip for chip in chips if chip not in measured]
    if missing:
        raise MetricsError(
            f"card {chips[0].card} gives one power for its {len(chips)} NPUs, of which this measurement has "
            f"{len(chips) - len(missing)}"
        )
    return None if card_power_w is None else card_power_w / len(chips)
