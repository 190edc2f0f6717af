"""Print the effect of a curriculum from a folder's records, of runs that differ only in order and seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from efficientbench.basics.errors import ConfigError, MetricsError
from efficientbench.finetuning.complete import with_later_keys
from efficientbench.finetuning.config import SAME, SEEDS
from efficientbench.finetuning.curriculum.effect import COMPARISONS, LossCurve, effects
from efficientbench.metrics.records.plausible import load_records
from efficientbench.metrics.records.record import RunRecord
from efficientbench.planning.table import plain_table, print_tables
from efficientbench.running.resume import settings

ALL = "all"
"""The name of the part with all held-out examples."""


def print_effects(folder: Path, console: Console) -> None:
    """Print the effects of order, mixture, difficulties and reversal on held-out losses, in all and by level.

    Raises:
        ConfigError: the runs differ in more than order and seed, or no two orders can be compared.
        MetricsError: there is no such folder, or a record is damaged.
    """
    records, damaged = load_records(folder)
    if damaged:
        raise MetricsError("; ".join(damaged))
    runs, notes = _comparable(records)
    parts = {name: _curves(runs, name) for name in (ALL, *_levels(runs))}
    found = {name: effects(curves) for name, curves in parts.items()}
    if not found[ALL]:
        pairs = "; ".join(f"{first} and {second}" for first, second in COMPARISONS.values())
        raise ConfigError(f"{folder}: no two orders to compare (curriculum.order): {pairs}")
    rows = []
    for effect, (first, second) in COMPARISONS.items():
        for part, own in found.items():
            if effect in own:
                each = own[effect]
                # Levels have no verdict: their p values are not corrected for the number of levels.
                verdict = each.verdict if part == ALL else ""
                name = f"{effect}: {first} − {second}" if part == ALL else ""
                rows.append((name, part, f"{each.difference:+.4f}", f"{each.low:+.4f} to {each.high:+.4f}", verdict))
    some = next(iter(found[ALL].values()))
    notes.append(
        f"paired by seed ({', '.join(map(str, some.seeds))}); each effect at the most loss tokens that both its orders "
        "have in all seeds; below 0 the first order is better; p values of the verdicts are corrected for their number"
    )
    columns = ("on", "nats", "95 % interval", "verdict")
    table = plain_table("effect", columns, rows, f"held-out losses of {len(runs)} runs", left=1)
    print_tables(console, [table], notes)


def _comparable(records: Iterable[RunRecord]) -> tuple[list[RunRecord], list[str]]:
    """Return the completed fine-tunings that ran in their configured order, and a note for each that did not.

    Raises ConfigError: the runs differ in more than order and seed.
    """
    runs: list[RunRecord] = []
    notes = []
    for record in records:
        if not record.finetuning or record.status != "completed":
            continue
        reason = record.finetuning["curriculum"]["reason"]
        if reason is not None and _order(record) != "random":
            notes.append(f"{record.run}, seed {record.seed}, is skipped: {reason}")
            continue
        runs.append(record)
    kinds = {json.dumps(_other_keys(record), sort_keys=True) for record in runs}
    if len(kinds) > 1:
        names = ", ".join(sorted({record.run for record in runs}))
        raise ConfigError(
            f"the runs ({names}) differ in more than curriculum.order and seed: name a folder of one kind"
        )
    return runs, notes


def _order(record: RunRecord) -> str:
    curriculum = record.config["curriculum"]
    return "random" if curriculum["use"] == "off" else str(curriculum["order"])


def _other_keys(record: RunRecord) -> dict[str, Any]:
    """Return the run's devices, and its configuration without order, seeds and keys that change no result."""
    of_order = ("label", "curriculum.order", "curriculum.use", *SEEDS)
    config = settings(with_later_keys(record.config), (*SAME, *of_order))
    return {"config": config, "devices": [record.device_name, record.devices]}


def _levels(runs: Sequence[RunRecord]) -> list[str]:
    """Return the names of the levels that occur in every run's held-out losses, easiest first."""
    if not runs:
        return []
    names = runs[0].config["curriculum"]["levels"]
    return [name for name in names if all(name in point["by_level"] for run in runs for point in _points(run))]


def _points(record: RunRecord) -> list[dict[str, Any]]:
    return list(record.finetuning["held_out"])


def _curves(runs: Sequence[RunRecord], part: str) -> dict[str, list[LossCurve]]:
    """Return the loss curves of each order on `part`: ALL, or a level."""
    curves: dict[str, list[LossCurve]] = {}
    for record in runs:
        points = tuple(
            (int(point["supervised_tokens"]), float(point["loss"] if part == ALL else point["by_level"][part]))
            for point in _points(record)
        )
        curves.setdefault(_order(record), []).append(LossCurve(int(record.config["training"]["seed"]), points))
    return curves
