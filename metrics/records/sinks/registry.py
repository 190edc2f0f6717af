"""The sinks that a run or a loop of one's own can have, several of them as one, and a step's scalars for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas.definitions import BYTES_PER_GB
from efficientbench.metrics.records.own_loop import REPEAT
from efficientbench.metrics.records.record import FIGURES, RunRecord
from efficientbench.metrics.records.sinks.prometheus import PrometheusLog, check_prometheus
from efficientbench.metrics.records.sinks.tensorboard import TensorBoardLog
from efficientbench.metrics.records.sinks.wandb_log import WandbLog, check_wandb
from efficientbench.metrics.sensors.base import Sample


class Sink(Protocol):
    """Where values of a run go while it trains."""

    def scalars(self, axis: str, place: int, values: Mapping[str, float | None]) -> None:
        """Write values by name at a place on the axis `step` or `tokens`; skip a value of None."""

    def figures(self, values: Mapping[str, Any]) -> None:
        """Write the figures of the recorded run."""

    def close(self) -> None:
        """Write what is left."""


@dataclass(frozen=True)
class Run:
    """What a sink is told of its run."""

    folder: Path
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The run's configuration."""

    @property
    def repeat(self) -> str | None:
        """Return the name of this repeat; None where its folder is no repeat's."""
        return self.folder.name if REPEAT.fullmatch(self.folder.name) else None


@dataclass(frozen=True)
class Kind:
    """One kind of sink."""

    open: Callable[[str, Run], Sink]
    """Opens the sink of a target and a run. Raises MetricsError: it cannot be opened."""
    check: Callable[[str], None] = lambda _: None
    """Raises MetricsError before any work if a target cannot be a sink here."""


SINKS = {
    "tensorboard": Kind(lambda target, _: TensorBoardLog(Path(target))),
    "wandb": Kind(lambda target, run: WandbLog(target, run.folder, run.name, run.settings), check_wandb),
    "prometheus": Kind(lambda target, run: PrometheusLog(target, run.name, run.repeat), check_prometheus),
}
"""Name → kind. A run's configuration has the target of a sink under its name; the target of TensorBoard is a folder."""


def asked_of(config: Any) -> dict[str, str]:
    """Return the sinks that a run's configuration asks for, by name, with their targets."""
    found = {name: getattr(config, name, None) for name in SINKS}
    return {name: target for name, target in found.items() if target is not None}


def named(words: Sequence[str]) -> dict[str, str]:
    """Return name and target of sinks written as NAME:TARGET. Raises MetricsError: there is no such sink."""
    targets = {}
    for word in words:
        name, _, target = word.partition(":")
        if name not in SINKS or not target:
            near = get_close_matches(name, SINKS, 1)
            hint = f" (did you mean {near[0]}?)" if near and near[0] != name else ""
            raise MetricsError(f"{word!r} is no sink{hint}: they are {', '.join(f'{each}:TARGET' for each in SINKS)}")
        targets[name] = target
    return targets


def check_sinks(targets: Mapping[str, str]) -> None:
    """Raise MetricsError before any work if a sink cannot be opened here."""
    for name, target in targets.items():
        SINKS[name].check(target)


class Sinks:
    """All sinks of one run.

    Raises:
        MetricsError: a sink cannot be opened.
    """

    def __init__(self, targets: Mapping[str, str], run: Run) -> None:
        """Open the sinks of these names and targets."""
        self._sinks: list[Sink] = []
        with ExitStack() as opened:
            opened.callback(self.close)
            for name, target in targets.items():
                self._sinks.append(SINKS[name].open(target, run))
            opened.pop_all()

    def scalars(self, step: int, values: Mapping[str, float | None]) -> None:
        """Write values by name at a step; skip None."""
        for sink in self._sinks:
            sink.scalars("step", step, values)

    def by_tokens(self, tokens: int, name: str, value: float) -> None:
        """Write a value by the number of tokens trained on so far."""
        for sink in self._sinks:
            sink.scalars("tokens", tokens, {f"by_tokens/{name}": value})

    def figures(self, record: RunRecord) -> None:
        """Write the figures of the record."""
        for sink in self._sinks:
            sink.figures({name: getattr(record, name) for name in FIGURES})

    def close(self) -> None:
        """Close the sinks."""
        for sink in self._sinks:
            sink.close()


def in_use(samples: Sequence[Sample]) -> tuple[float | None, float | None]:
    """Return the memory of the device that uses most, bytes, and the power of all, W; None where nothing reads it."""
    used_bytes = max((s.memory_used_bytes for s in samples if s.memory_used_bytes is not None), default=None)
    powers_w = [sample.power_w for sample in samples if sample.power_w is not None]
    return used_bytes, sum(powers_w) if powers_w else None


def step_scalars(step_time_s: float, tokens: int, samples: Sequence[Sample]) -> dict[str, float | None]:
    """Return a step's time, throughput, memory and power, by the names that runs and loops of one's own share."""
    used_bytes, power_w = in_use(samples)
    return {
        "efficiency/step_time_s": step_time_s,
        "efficiency/tokens_per_s": tokens / step_time_s,
        "memory/used_gb": used_bytes / BYTES_PER_GB if used_bytes is not None else None,
        "energy/power_w": power_w,
    }
