"""A comparison as it is printed."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from efficientbench.metrics.analysis.compare import Comparison
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.definitions import BYTES_PER_GB
from efficientbench.metrics.ratio import NO_INTERVAL, WITHIN_A_RUN, Ratio

UNITS = {
    "tokens_per_s": "tokens/s",
    "al_s": "AL, s/step",
    "al_s_p50": "median step, s",
    "tt_tokens_per_param_s": "TT",
    "energy_j_per_token": "J/token",
    "energy_j_per_step": "J/step",
    "aec_w": "AEC, W",
    "amu_gb": "AMU, GB",
    "peak_memory_device_bytes": "peak, device, GB",
    "peak_memory_allocated_bytes": "peak, torch, GB",
    "pcu": "PCU",
    "mfu": "MFU",
    "validation_loss": "validation loss",
    "bits_per_byte": "bits/byte",
    "tokens_to_loss": "tokens to it",
    "time_to_loss_s": "seconds to it",
    "energy_to_loss_j": "joules to it",
}


def unit_scale(metric: str) -> float:
    """What a figure is divided by to be in the unit that UNITS names."""
    return BYTES_PER_GB if metric.endswith("_bytes") else 1


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print what differs, the ratio of each figure, the cost to a quality, and each reason for an n/a once."""
    first, second = _titles(comparison)
    for line in _introduction(comparison, first, second):
        console.print(Text(line))
    console.print()
    console.print(_table(comparison.ratios))
    if comparison.costs:
        console.print()
        console.print(Text(f"To a validation loss of {comparison.target_loss:.4g}:"))
        console.print(_table(comparison.costs))
    console.print()
    console.print(Text(_bases(comparison)))
    if comparison.speed_only:
        console.print(Text(f"Speed only: {comparison.speed_only}."))
    reasons: dict[str, list[str]] = {}
    for name, reason in comparison.unavailable.items():
        reasons.setdefault(reason, []).append(UNITS.get(name, "cost to a quality"))
    for reason, names in reasons.items():
        console.print(Text(f"n/a {'; '.join(names)}: {reason}"), style="dim")


def _titles(comparison: Comparison) -> tuple[str, str]:
    return _title(comparison.first), _title(comparison.second)


def _title(group: Group) -> str:
    repeats = f" × {len(group.records)}" if len(group.records) > 1 else ""
    return f"{group.name}{' (smoke)' if group.first.smoke else ''}{repeats}"


def _introduction(comparison: Comparison, first: str, second: str) -> list[str]:
    lines = [f"A: {first}, B: {second}, on {comparison.first.first.device_name}, {comparison.first.first.dtype}"]
    if comparison.identical:
        lines.append("Identical models (A/A test): what they differ by is noise.")
    elif comparison.model_changes:
        lines.append(f"model: {_changes(comparison.model_changes)}")
    if comparison.other_changes:
        lines.append(f"also different: {_changes(comparison.other_changes)}")
    lines += [f"despite a different {difference}" for difference in comparison.despite]
    return lines


def _bases(comparison: Comparison) -> str:
    """What the intervals and the noise floor are of."""
    ratios = (*comparison.ratios, *comparison.costs)
    bases = dict.fromkeys(ratio.basis for ratio in ratios if ratio.low is not None)
    unknown = {WITHIN_A_RUN: f"{WITHIN_A_RUN}, which knows nothing of the noise between runs and seeds (--repeat)"}
    lines = [f"Intervals: {'; '.join(unknown.get(basis, basis) for basis in bases) or NO_INTERVAL}."]
    floors = [
        f"{UNITS[ratio.metric]} ±{ratio.noise_floor - 1:.1%}" for ratio in ratios if ratio.noise_floor is not None
    ]
    if floors:
        lines.append(f"Noise floor, the largest difference between identical models: {'; '.join(floors)}.")
    return " ".join(lines)


def _changes(changes: dict[str, tuple[object, object]]) -> str:
    return ", ".join(f"{key.removeprefix('model.')} {one} → {other}" for key, (one, other) in changes.items())


def _table(ratios: tuple[Ratio, ...]) -> Table:
    """Narrow enough for 80 columns, so that no row is broken."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("figure", no_wrap=True)
    for title in ("A", "B", "B/A", "95 %"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for ratio in ratios:
        scale = unit_scale(ratio.metric)
        table.add_row(
            UNITS[ratio.metric],
            f"{ratio.first / scale:.4g}",
            f"{ratio.second / scale:.4g}",
            f"{ratio.ratio:.3f}",
            "n/a" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f}–{ratio.high:.3f}",
            ratio.verdict,
        )
    return table
