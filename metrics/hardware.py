"""Peak rates of devices, from `hardware.yaml`."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

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


@lru_cache(maxsize=1)
def _table() -> dict[str, list[dict[str, Any]]]:
    table: dict[str, list[dict[str, Any]]] = yaml.safe_load(TABLE.read_text())
    return table
