"""Declares the Ascend driver's C library DCMI: its paths, its structures, how to call it, and which chips to read.

Written from Huawei's documentation and from other projects' use of it; never run on an NPU.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from efficientbench.basics.errors import MetricsError

LIBRARIES = ("libdcmi.so", "/usr/local/Ascend/driver/lib64/driver/libdcmi.so", "/usr/local/dcmi/libdcmi.so")
MAXIMUM_CARDS = 64


class HbmInfo(ctypes.Structure):
    """On-chip memory; sizes in MB."""

    _fields_ = (
        ("memory_size", ctypes.c_ulonglong),
        ("freq", ctypes.c_uint),
        ("memory_usage", ctypes.c_ulonglong),
        ("temp", ctypes.c_int),
        ("bandwidth_utilization", ctypes.c_uint),
    )


class DdrInfo(ctypes.Structure):
    """Memory of a chip without on-chip memory; sizes in MB."""

    _fields_ = (
        ("memory_size", ctypes.c_ulonglong),
        ("memory_available", ctypes.c_ulonglong),
        ("freq", ctypes.c_uint),
        ("huge_page_size", ctypes.c_ulong),
        ("huge_pages_total", ctypes.c_ulong),
        ("huge_pages_free", ctypes.c_ulong),
        ("utilization", ctypes.c_uint),
        ("reserve", ctypes.c_ubyte * 60),
    )


class ChipInfo(ctypes.Structure):
    """Names of a chip, such as `Ascend` and `910B2`."""

    _fields_ = (
        ("chip_type", ctypes.c_char * 32),
        ("chip_name", ctypes.c_char * 32),
        ("chip_version", ctypes.c_char * 32),
        ("ai_cores", ctypes.c_uint),
        ("npu_name", ctypes.c_char * 32),
    )


class DieId(ctypes.Structure):
    """Serial number of a chip's die."""

    _fields_ = (("soc_die", ctypes.c_uint * 5),)


class EccInfo(ctypes.Structure):
    """Error correction of a chip's memory."""

    _fields_ = (("enabled", ctypes.c_int), ("counts", ctypes.c_uint * 6))


class Process(ctypes.Structure):
    """One process on a chip."""

    _fields_ = (("pid", ctypes.c_int), ("memory_bytes", ctypes.c_ulong))


def load(path: str | None = None) -> Any:
    """Return the library at `path`, by default the driver's own, initialized.

    Raises:
        MetricsError: the library cannot be loaded, or its driver does not answer.
    """
    problem = "not found"
    for candidate in [path] if path else LIBRARIES:
        try:
            dcmi = ctypes.CDLL(candidate)
            break
        except OSError as error:
            if os.path.exists(candidate):  # such as one that needs another library of the driver
                problem = str(error)
    else:
        raise MetricsError(
            f"the Ascend driver's library libdcmi.so cannot be loaded ({problem}): install the NPU driver, or mount "
            "the host's /usr/local/dcmi and /usr/local/Ascend/driver/lib64 in the container"
        )
    call(dcmi, "dcmi_init")
    return dcmi


def call(dcmi: Any, function: str, *arguments: Any) -> None:
    """Call a function of the library.

    Raises:
        MetricsError: the library has no such function, or the call fails.
    """
    try:
        code = getattr(dcmi, function)(*arguments)
    except AttributeError:
        # An Ascend 950's library has functions of other names only.
        reason = f"this driver's libdcmi.so has no {function}: its NPUs are of an unknown generation"
        raise MetricsError(reason) from None
    if code != 0:
        raise MetricsError(f"{function} failed with code {code} (DCMI API Reference, return codes)")


def card_ids(dcmi: Any) -> list[int]:
    """Return the cards of this machine, as the driver numbers them."""
    count, cards = ctypes.c_int(), (ctypes.c_int * MAXIMUM_CARDS)()
    call(dcmi, "dcmi_get_card_list", ctypes.byref(count), cards, MAXIMUM_CARDS)
    return cards[: count.value]


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
