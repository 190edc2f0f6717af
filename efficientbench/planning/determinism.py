"""The promises of a run with `training.deterministic`, and their limits."""

from __future__ import annotations

import os
from collections.abc import Mapping

from efficientbench.config.registry import OWN, SECTIONS, attention_of, outside
from efficientbench.config.schema import RunConfig
from efficientbench.devices.base import Device


def not_promised(config: RunConfig, device: Device, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return each part of a run whose bits may differ from one run to the next, with the reason.

    Empty for a run without `training.deterministic`, which promises nothing.
    """
    if not config.training.deterministic:
        return {}
    found = dict(device.may_differ())
    for name, values in device.deterministic_environment().items():
        if environment.get(name, values[0]) not in values:
            found[name] = f"it is {environment[name]!r} in the environment, and {' or '.join(values)} would serve"
    for section in SECTIONS:
        kind = getattr(config.model, section).kind
        if kind not in OWN[section] and outside(kind) is not None:
            found[section] = f"{kind} is from outside this project, and its kernels decide"
    kernel = attention_of(config.model).may_differ
    return found | ({kernel[0]: kernel[1]} if kernel and device.fuses() else {})


def determinism(config: RunConfig, device: Device) -> str | None:
    """Return what to print of a run with `training.deterministic`; None for a run without."""
    if not config.training.deterministic:
        return None
    gaps = "; ".join(f"{part}: {reason}" for part, reason in not_promised(config, device).items())
    promise = "deterministic: the same bits in every run on the same devices, layout and versions of libraries"
    return promise + (f", but perhaps not in {gaps}" if gaps else "")
