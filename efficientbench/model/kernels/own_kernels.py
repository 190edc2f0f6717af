"""The description by which a variant declares its own kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from efficientbench.config.schema import RunConfig
from efficientbench.costs.compute import AttentionWork


@dataclass(frozen=True)
class OwnKernels:
    """A variant's own kernels; each function takes the run's configuration and the device type."""

    names: Callable[[RunConfig, str], dict[str, str]]
    """Model part → name of its kernel."""
    fallbacks: Callable[[RunConfig, str], dict[str, str]] = lambda config, device_type: {}
    """Model part that uses a fallback on this device type → why the better kernel does not run."""
    work: Callable[[RunConfig, str], AttentionWork] = lambda config, device_type: AttentionWork()
    """The kernels' work beyond the formulas."""
