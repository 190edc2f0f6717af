"""A comparison as it is printed."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from metrics.compare import Comparison
from metrics.ratio import NO_INTERVAL, WITHIN_A_RUN, Ratio
from metrics.repeats import Group

UNITS = {
    "tokens_per_s": "tokens/s",
    "al_s": "AL, s/step",
    "al_s_p50": "median step, s",
    "tt_tokens_per_param_s": "TT, tokens/param/s",
    "energy_j_per_token": "J/token",
    "energy_j_per_step": "J/step",
    "aec_w": "AEC, W",
    "amu_gb": "AMU, GB",
    "peak_memory_device_bytes": "peak memory, device, B",
    "peak_memory_allocated_bytes": "peak memory, allocated, B",
    "pcu": "PCU",
    "mfu": "MFU",
    "validation_loss": "validation loss",
    "bits_per_byte": "bits/byte",
    "tokens_to_loss": "tokens to it",
    "time_to_loss_s": "seconds to it",
    "energy_to_loss_j": "joules to it",
}


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print what differs, the ratio of each figure, the cost to a quality, and each reason for an n/a once."""
    first, second = _titles(comparison)
    for line in _introduction(comparison, first, second):
        console.print(Text(line))
    console.print()
    console.print(_table(comparison.ratios, first, second))
    if comparison.costs:
        console.print()
        console.print(Text(f"To a validation loss of {comparison.target_loss:.4g}:"))
        console.print(_table(comparison.costs, first, second))
    console.print()
    console.print(Text(_bases(comparison)))
    if comparison.speed_only:
        console.print(Text(f"Speed only: {comparison.speed_only}."))
    reasons: dict[str, list[str]] = {}
    for name, reason in comparison.unavailable.items():
        reasons.setdefault(reason, []).append(UNITS.get(name, "cost to a quality"))
    for reason, names in reasons.items():
        console.print(Text(f"n/a {', '.join(names)}: {reason}"), style="dim")


def _titles(comparison: Comparison) -> tuple[str, str]:
    names = [_title(group) for group in (comparison.first, comparison.second)]
    return (f"{names[0]} (A)", f"{names[1]} (B)") if names[0] == names[1] else (names[0], names[1])


def _title(group: Group) -> str:
    repeats = f" × {len(group.records)}" if len(group.records) > 1 else ""
    return f"{group.name}{' (smoke)' if group.first.smoke else ''}{repeats}"


def _introduction(comparison: Comparison, first: str, second: str) -> list[str]:
    lines = [f"{second} over {first}, on {comparison.first.first.device_name}, {comparison.first.first.dtype}"]
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
    if any(ratio.noise_floor is not None for ratio in ratios):
        lines.append("Noise floor: the largest difference between identical models under two names.")
    return " ".join(lines)


def _changes(changes: dict[str, tuple[object, object]]) -> str:
    return ", ".join(f"{key.removeprefix('model.')} {one} → {other}" for key, (one, other) in changes.items())


def _table(ratios: tuple[Ratio, ...], first: str, second: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("figure", no_wrap=True)
    for title in (first, second, "ratio", "95 % interval", "noise floor"):
        table.add_column(title, justify="right", overflow="fold")
    table.add_column("verdict", overflow="fold")
    for ratio in ratios:
        table.add_row(
            UNITS[ratio.metric],
            f"{ratio.first:.4g}",
            f"{ratio.second:.4g}",
            f"{ratio.ratio:.3f}",
            "n/a" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f} to {ratio.high:.3f}",
            "n/a" if ratio.noise_floor is None else f"±{ratio.noise_floor - 1:.1%}",
            ratio.verdict,
        )
    return table
