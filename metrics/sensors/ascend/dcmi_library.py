"""Declares the Ascend driver's C library DCMI from its documentation: its paths, its structures, how to call it."""

from __future__ import annotations

import ctypes
import os
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
