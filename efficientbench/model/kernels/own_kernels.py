"""Description of the kernels that a variant declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from efficientbench.config.schema import RunConfig
from efficientbench.costs.compute import AttentionWork


def _no_fallbacks(config: RunConfig, device_type: str) -> dict[str, str]:
    return {}


@dataclass(frozen=True)
class OwnKernels:
    """Kernels of a variant's own; each function takes the run and the type of its device."""

    names: Callable[[RunConfig, str], dict[str, str]]
    """Part of the model → the kernel that computes it."""
    fallbacks: Callable[[RunConfig, str], dict[str, str]] = _no_fallbacks
    """Part for which there is a better kernel on this device type → why it does not run here."""
    work: Callable[[RunConfig, str], AttentionWork] = lambda config, device_type: AttentionWork()
    """What the kernels compute more than the formulas."""
