"""A cache on disk of kernels' times, for later runs with the same shape, device and versions."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import read_whole
from efficientbench.devices.registry import device_called
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.environment import version_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timings:
    """One measurement of kernels."""

    conditions: dict[str, str]
    """Everything that the times depend on."""
    times_s: tuple[tuple[str, float], ...]
    """Working kernels with their times, the fastest first; at least one."""
    refused: tuple[tuple[str, str], ...]
    """The other kernels, with the reasons why they do not work."""


_TIMINGS = TypeAdapter(Timings)


def place(
    folder: Path, names: list[str], shape: str, device_type: str, of: str = "attention"
) -> tuple[Path, dict[str, str]]:
    """Return the cache file of kernels' times, and their conditions: names, shape, device and versions.

    of: the part that the kernels compute, with which the file's name begins.
    """
    device = device_called(device_type)
    conditions = {
        "kernels": " ".join(names),
        "shape": shape,
        "device": device.names()[0],
        "torch": torch.__version__,
        "transformer-engine": version_of("transformer-engine") or "none",
        **device.versions(),
    }
    digest = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()
    return folder / f"{of}_{digest[:16]}.json", conditions


def read(path: Path, conditions: dict[str, str]) -> Timings | None:
    """Return the times that `write` saved under these conditions; None if there are none.

    Ignore a file that is damaged or has other conditions, with a warning in the log.
    """
    try:
        kept = _TIMINGS.validate_json(read_whole(path))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        logger.warning("%s is ignored: it holds no kernels' times (%s)", path, str(error).partition("\n")[0])
        return None
    times_s = [time_s for _, time_s in kept.times_s]
    sound = all(math.isfinite(time_s) and time_s > 0 for time_s in times_s) and times_s == sorted(times_s)
    known = {name for name, _ in kept.times_s} <= set(conditions["kernels"].split())
    if kept.conditions != conditions or not times_s or not sound or not known:
        logger.warning("%s is ignored: its times are of other kernels or conditions, or are none", path)
        return None
    return kept


def write(path: Path, timings: Timings) -> None:
    """Save times; if the file cannot be written, log a warning, and the next run measures again."""
    try:
        write_whole(path, _TIMINGS.dump_json(timings, indent=2).decode() + "\n")
    except MetricsError as error:
        logger.warning("kernels' times are not kept: %s", error)
