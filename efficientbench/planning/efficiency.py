"""The shares of a device's peaks that steps reach, and how wrong projections with them were, by published runs.

`efficiencies.yaml` beside this file has both. `tests/benchmarks/published_speeds.py` fits the shares to one half of
published runs, and takes the errors from the other half.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

from efficientbench.architecture.model import OWN_LAYER, ModelConfig
from efficientbench.architecture.variant import known
from efficientbench.basics.foreign import parse_own_yaml
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.costs.communication import Transfer
from efficientbench.costs.model import keys_read_per_query
from efficientbench.metrics.sensors.hardware import DeviceRates

LONG_SEQUENCE = 1 << 20
"""Tokens of a sequence that no window holds."""
TABLE = Path(__file__).with_name("efficiencies.yaml")


@dataclass(frozen=True)
class Efficiency:
    """Fractions of a device's peaks that a step reaches."""

    matmul: float
    attention: float
    memory: float
    link: float

    def at(self, config: RunConfig, layout: Layout, stages: int) -> Efficiency:
        """Return these shares, which are the same in every run: see `Shares`."""
        return self

    def transfer_s(self, transfer: Transfer, ranks: int, far: bool, link_bytes_s: float) -> float:
        """Return the seconds in which a rank sends a transfer.

        Args:
            transfer: what is sent.
            ranks: the ranks of its group.
            far: whether it leaves a node.
            link_bytes_s: the peak of the slowest link that the group crosses, bytes/s.
        """
        return transfer.sent_bytes(ranks) / (link_bytes_s * self.link)


class Shares(Protocol):
    """Where the shares of a device's peaks that a run reaches are from."""

    def at(self, config: RunConfig, layout: Layout, stages: int) -> Efficiency:
        """Return the shares that a run reaches while ranks of `stages` pipeline stages compute."""


@dataclass(frozen=True)
class Reached:
    """What published runs of one kind reached."""

    runs: str
    """The kind of runs, like 'dense models on H100 SXM'."""
    devices: tuple[str, ...]
    """The devices in `hardware.yaml` that it is for; empty: all others."""
    experts: bool
    """Whether it is for models with experts."""
    efficiency: Efficiency
    fitted: int
    """Published runs that the shares were fitted to."""
    held_out: int
    """Published runs that the errors are from, none of which was fitted."""
    median_error: float
    """The median of |projected / published tokens a second − 1| over the held-out runs."""
    most_error: float
    lowest: float
    """Of the held-out runs the least ratio of published to projected tokens a second."""
    highest: float
    unlike: tuple[str, ...] = ()
    """The kinds of layers of the model in question that none of the published runs has."""

    @property
    def share(self) -> str:
        """The share of the peak in matrix products, and where it is from."""
        return f"{self.efficiency.matmul:.0%} of its peak in matrix products assumed"

    def assumed(self, rates: DeviceRates) -> str:
        """Return what a projection on a device assumes that it reaches."""
        share, network = self.efficiency, rates.between_nodes_bytes_s
        between = f", {network / 1e9:g} GB/s between nodes" if network else ""
        return (
            f"assumed, as fitted to {self.fitted} published runs of {self.runs}: {share.matmul:.0%} of "
            f"{rates.peak_flops / 1e12:g} TFLOP/s in matmuls, {share.attention:.0%} in attention, {share.memory:.0%} "
            f"of {rates.memory_bytes_s / 1e12:g} TB/s of memory, {share.link:.0%} of {rates.in_node_bytes_s / 1e9:g} "
            f"GB/s in a node{between}; no transfer has a latency"
        )

    @property
    def error(self) -> str:
        """How wrong projections with these shares were."""
        unlike = f"; none of them has layers of {' and '.join(self.unlike)}" if self.unlike else ""
        return (
            f"on {self.held_out} published runs of {self.runs}, which were not fitted, projection erred by "
            f"{self.median_error:.0%} in the median, {self.most_error:.0%} at most{unlike}"
        )

    @property
    def time_range(self) -> str:
        """By which factors published runs took longer than projected, and how wrong projections were."""
        return f"published runs took {1 / self.highest:.2f} to {1 / self.lowest:.2f} times as long; {self.error}"

    def tokens_range(self, tokens_per_s: float) -> str:
        """Return the range of a device's tokens a second that the errors give, around a projection."""
        return (
            f"{self.lowest * tokens_per_s:,.0f} to {self.highest * tokens_per_s:,.0f} tokens/s a device; {self.error}"
        )


def reached(device: str, model: ModelConfig) -> Reached:
    """Return what published runs like this model's on a device reached; `device`: its name in `hardware.yaml`."""
    # All published runs have layers whose queries read every earlier key.
    unlike = {
        view.attention.kind if name == OWN_LAYER else name
        for name, view in model.views.items()
        if known(partial(keys_read_per_query, view, LONG_SEQUENCE)) != (LONG_SEQUENCE + 1) / 2
    }
    return replace(reached_by(device, has_experts(model)), unlike=tuple(sorted(unlike)))


def has_experts(model: ModelConfig) -> bool:
    """Return whether any layer has experts."""
    return any(view.moe is not None for view in model.views.values())


def reached_by(device: str, experts: bool) -> Reached:
    """Return what published runs on a device reached, of models with experts or of dense ones."""
    return next(each for each in _table() if each.experts == experts and device in (each.devices or (device,)))


@lru_cache(maxsize=1)
def _table() -> tuple[Reached, ...]:
    rows = parse_own_yaml(TABLE.read_text(encoding="utf-8"))
    return tuple(
        Reached(**row | {"devices": tuple(row["devices"]), "efficiency": Efficiency(**row["efficiency"])})
        for row in rows
    )
