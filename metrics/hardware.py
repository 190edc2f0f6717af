"""Peak rates of devices, from `hardware.yaml`."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from efficientbench.metrics.errors import MetricsError

TABLE = Path(__file__).with_name("hardware.yaml")

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
_GIVE_IT = "give the device's dense peak in the configuration"


def peak_flops(device_name: str, dtype: str) -> tuple[float | None, str]:
    """The dense peak of one device, FLOP/s.

    Args:
        device_name: as the driver gives it, such as 'NVIDIA A100-SXM4-80GB'.
        dtype: of the matrix products: 'bf16', 'fp16', 'tf32', 'fp32', or torch's own names.

    Returns:
        (peak in FLOP/s, the datasheet it comes from), or (None, why it is not known).
    """
    name = device_name.strip().removeprefix("NVIDIA ")
    key = _DTYPES.get(dtype.removeprefix("torch."), dtype)
    table = _table()
    for row in table["undetermined"]:
        if re.fullmatch(row["match"], name):
            return None, f"{row['reason']}: {_GIVE_IT}"
    for row in table["devices"]:
        if re.fullmatch(row["match"], name):
            tflops = row["peak_tflops"].get(key)
            if tflops is None:
                known = ", ".join(row["peak_tflops"])
                return None, f"the peak of {row['name']} in {key} is not known (known: {known}): {_GIVE_IT}"
            return tflops * 1e12, row["source"]
    return None, f"the peak of '{device_name}' is not in the hardware table: {_GIVE_IT}"


@dataclass(frozen=True)
class DeviceRates:
    """What one device can do at best: dense peaks, and what its links carry in one direction."""

    name: str
    backend: str
    """The library of collectives that its links are used through."""
    peak_flops: float
    """FLOP/s in the dtype that was asked for."""
    memory_bytes_s: float
    memory_bytes: float | None
    """Capacity; None where the name does not settle it."""
    in_node_bytes_s: float
    """To the other devices of its node."""
    between_nodes_bytes_s: float | None
    """Its share of the node's network; None where no reference system settles it."""
    sources: tuple[str, ...]


def device_rates(name: str, dtype: str, peak: float | None = None) -> DeviceRates:
    """The row of a device, by its name in the table or as the driver gives it.

    Args:
        name: such as 'H100 SXM', or 'NVIDIA H100 80GB HBM3'.
        dtype: of the matrix products, as `peak_flops` takes it.
        peak: dense FLOP/s that stand in the table's place; None: the table's.

    Raises:
        MetricsError: a device that the table does not name, or a rate that it lacks.
    """
    table = _table()
    names = [row["name"] for row in table["devices"]]
    row = next((row for row in table["devices"] if name in (row["name"], row["name"].replace(" ", "_"))), None)
    bare = name.strip().removeprefix("NVIDIA ")
    row = row or next((row for row in table["devices"] if re.fullmatch(row["match"], bare)), None)
    if row is None:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise MetricsError(f"'{name}' is not in the table of devices ({', '.join(names)}){hint}")
    tflops = row["peak_tflops"].get(_DTYPES.get(dtype.removeprefix("torch."), dtype))
    if peak is None and tflops is None:
        known = ", ".join(row["peak_tflops"])
        raise MetricsError(f"the peak of {row['name']} in {dtype} is not known (known: {known}): {_GIVE_IT}")
    links = next(links for links in table["links"] if row["name"] in links["devices"])
    network = links["between_nodes_gb_s"]
    return DeviceRates(
        name=row["name"],
        backend=links["backend"],
        peak_flops=peak or tflops * 1e12,
        memory_bytes_s=row["memory_bandwidth_gb_s"] * 1e9,
        memory_bytes=row["memory_gb"] and row["memory_gb"] * 1e9,
        in_node_bytes_s=links["in_node_gb_s"] * 1e9,
        between_nodes_bytes_s=network and network * 1e9,
        sources=("peak given" if peak else row["source"], links["source"]),
    )


@lru_cache(maxsize=1)
def _table() -> dict[str, list[dict[str, Any]]]:
    table: dict[str, list[dict[str, Any]]] = yaml.safe_load(TABLE.read_text())
    return table
