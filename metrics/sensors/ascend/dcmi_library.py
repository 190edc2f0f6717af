"""The driver's C library as its documentation declares it: where it lies, its structures, its calls."""

from __future__ import annotations

import ctypes
from typing import Any

from efficientbench.metrics.errors import MetricsError

LIBRARIES = ("libdcmi.so", "/usr/local/Ascend/driver/lib64/driver/libdcmi.so", "/usr/local/dcmi/libdcmi.so")
MAXIMUM_CARDS = 64


class HbmInfo(ctypes.Structure):
    _fields_ = (
        ("memory_size", ctypes.c_ulonglong),
        ("freq", ctypes.c_uint),
        ("memory_usage", ctypes.c_ulonglong),
        ("temp", ctypes.c_int),
        ("bandwidth_utilization", ctypes.c_uint),
    )


class DdrInfo(ctypes.Structure):
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
    _fields_ = (
        ("chip_type", ctypes.c_char * 32),
        ("chip_name", ctypes.c_char * 32),
        ("chip_version", ctypes.c_char * 32),
        ("ai_cores", ctypes.c_uint),
        ("npu_name", ctypes.c_char * 32),
    )


class DieId(ctypes.Structure):
    _fields_ = (("soc_die", ctypes.c_uint * 5),)


class Process(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_int), ("memory_bytes", ctypes.c_ulong))


def load(path: str | None) -> Any:
    """The library at `path`, by default the driver's own, initialized.

    Raises:
        MetricsError: there is none, it cannot be loaded, or there is no driver behind it.
    """
    path = path or find_library()
    if path is None:
        raise MetricsError("the Ascend driver's library libdcmi.so is not installed")
    try:
        dcmi = ctypes.CDLL(path)
    except OSError as error:
        raise MetricsError(f"the Ascend driver's library cannot be loaded ({error})") from None
    call(dcmi, "dcmi_init")
    return dcmi


def call(dcmi: Any, function: str, *arguments: Any) -> None:
    """Raises MetricsError where the library has no such function, or it fails."""
    try:
        code = getattr(dcmi, function)(*arguments)
    except AttributeError:
        raise MetricsError(f"this driver's libdcmi.so has no {function}") from None
    if code != 0:
        raise MetricsError(f"{function} failed with code {code} (DCMI API Reference, return codes)")


def card_ids(dcmi: Any) -> list[int]:
    """The cards of this machine, as the driver numbers them."""
    count, cards = ctypes.c_int(), (ctypes.c_int * MAXIMUM_CARDS)()
    call(dcmi, "dcmi_get_card_list", ctypes.byref(count), cards, MAXIMUM_CARDS)
    return cards[: count.value]


def find_library() -> str | None:
    """Where the driver's library can be loaded from, or None."""
    for path in LIBRARIES:
        try:
            ctypes.CDLL(path)
        except OSError:
            continue
        return path
    return None


def serves() -> bool:
    """Whether the driver's library is here and knows cards; that of a 950 has functions of other names alone."""
    try:
        return bool(card_ids(load(None)))
    except MetricsError:
        return False
