"""Looks up the peak rates of devices in `hardware.yaml`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from efficientbench.metrics.errors import MetricsError

TABLE = Path(__file__).with_name("hardware.yaml")

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
_MAKERS = frozenset({"nvidia", "geforce", "tesla"})
"""Words of the drivers' names that tell no device from another."""
_REMEDY = "give the device's dense peak in the configuration"


@dataclass(frozen=True)
class DeviceRates:
    """The most that one device can do: dense peaks, and what its links carry in one direction."""

    name: str
    backend: str
    """The library of collectives that uses its links."""
    peak_flops: float
    """FLOP/s in the dtype that was asked for."""
    memory_bytes_s: float
    memory_bytes: float | None
    """Capacity; None if the name does not settle it."""
    in_node_bytes_s: float
    """To the other devices of its node."""
    between_nodes_bytes_s: float | None
    """Its share of the node's network; None if no reference system settles it."""
    sources: tuple[str, ...]


def peak_flops(device_name: str, dtype: str) -> tuple[float | None, str]:
    """Return the dense peak of one device, FLOP/s.

    Args:
        device_name: as the driver reports it, such as 'NVIDIA A100-SXM4-80GB'.
        dtype: of the matrix products: 'bf16', 'fp16', 'tf32', 'fp32', or torch's own names.

    Returns:
        (peak in FLOP/s, the datasheet it comes from), or (None, why it is unknown).
    """
    undetermined = _matching("undetermined", device_name)
    if undetermined is not None:
        return None, f"{undetermined['reason']}: {_REMEDY}"
    row = _matching("devices", device_name)
    if row is None:
        return None, f"the peak of '{device_name}' is not in the hardware table: {_REMEDY}"
    try:
        return _peak_flops(row, dtype), row["source"]
    except MetricsError as error:
        return None, str(error)


def memory_bandwidth(device_name: str) -> tuple[float | None, str]:
    """Return the peak bandwidth of one device's memory, bytes a second, and its datasheet; or None and why.

    `device_name` is as the driver reports it.
    """
    undetermined, row = _matching("undetermined", device_name), _matching("devices", device_name)
    if undetermined is not None:
        return None, undetermined["reason"]
    if row is None:
        return None, f"the memory bandwidth of '{device_name}' is not in the hardware table"
    return row["memory_bandwidth_gb_s"] * 1e9, row["source"]


def device_rates(name: str, dtype: str, peak: float | None = None) -> DeviceRates:
    """Return the row of a device by its name in the table or as the driver reports it.

    Args:
        name: such as 'H100 SXM', in any case, 'h200_sxm', words that name the chip of one row alone, or 'NVIDIA
            H100 80GB HBM3'.
        dtype: of the matrix products, as for `peak_flops`.
        peak: dense FLOP/s to use instead of the table's.

    Raises:
        MetricsError: the table has no such device, or several, or lacks its peak in that dtype.
    """
    row = _matching("devices", name) or _named(name)
    if row is None:
        names = [row["name"] for row in _table()["devices"]]
        near = _near(name)
        hint = f"; did you mean '{near}'?" if near else ""
        raise MetricsError(f"'{name}' is not in the table of devices ({', '.join(names)}){hint}")
    links = next(links for links in _table()["links"] if row["name"] in links["devices"])
    network = links["between_nodes_gb_s"]
    return DeviceRates(
        name=row["name"],
        backend=links["backend"],
        peak_flops=peak or _peak_flops(row, dtype),
        memory_bytes_s=row["memory_bandwidth_gb_s"] * 1e9,
        memory_bytes=row["memory_gb"] and row["memory_gb"] * 1e9,
        in_node_bytes_s=links["in_node_gb_s"] * 1e9,
        between_nodes_bytes_s=network and network * 1e9,
        sources=("peak given" if peak else row["source"], links["source"]),
    )


def _words(name: str) -> list[str]:
    return [word for word in name.replace("_", " ").lower().split() if word not in _MAKERS]


def _chip(words: Sequence[str]) -> str:
    """Return the word that names the chip, which is the first with a digit; '' if there is none."""
    return next((word for word in words if re.search(r"\d", word)), "")


def _named(name: str) -> dict[str, Any] | None:
    """Return the row with this name, in any case, or the only one that its words stand for.

    Raises MetricsError: they stand for several rows.
    """
    words, rows = _words(name), _table()["devices"]
    found = [row for row in rows if _words(row["name"]) == words]
    found = found or [row for row in rows if _stand_for(words, _words(row["name"]))]
    if len(found) > 1:
        raise MetricsError(f"'{name}' is several devices: name one of {', '.join(row['name'] for row in found)}")
    return found[0] if found else None


def _stand_for(words: Sequence[str], row: Sequence[str]) -> bool:
    """Return whether words are a row's, and enough to tell it from cards that the table lacks.

    Its chip must be named. After a mere number no word may be left out: an RTX 6000 is no RTX 6000 Ada.
    """
    chip = _chip(row)
    further = row[row.index(chip) + 1 :] if chip.isdigit() else []
    return {chip, *further} <= set(words) <= set(row)


def _near(name: str) -> str | None:
    """Return the name of the row that a mistyped one may mean; None rather than another card's.

    The chip is the same, and every word is like one of the row's. A name that has all words of a row and more is that
    of another card, as RTX 4090 Laptop is.
    """
    words, names = _words(name), [row["name"] for row in _table()["devices"]]
    alike = [
        each
        for each in names
        if _chip(words) == _chip(_words(each))
        and not set(_words(each)) <= set(words)
        and all(difflib.get_close_matches(word, _words(each)) for word in words)
    ]
    return next(iter(difflib.get_close_matches(name, alike, n=1, cutoff=0)), None)


def _matching(part: str, device_name: str) -> dict[str, Any] | None:
    """Return the row of a part of the table whose pattern is the driver's name of a device."""
    name = device_name.strip().removeprefix("NVIDIA ")
    return next((row for row in _table()[part] if re.fullmatch(row["match"], name)), None)


def _peak_flops(row: dict[str, Any], dtype: str) -> float:
    tflops = row["peak_tflops"].get(_DTYPES.get(dtype.removeprefix("torch."), dtype))
    if tflops is None:
        known = ", ".join(row["peak_tflops"])
        raise MetricsError(f"the peak of {row['name']} in {dtype} is not known (known: {known}): {_REMEDY}")
    return float(tflops * 1e12)


@lru_cache(maxsize=1)
def _table() -> dict[str, list[dict[str, Any]]]:
    return yaml.safe_load(TABLE.read_text())
