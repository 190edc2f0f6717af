"""The comparison of two groups of runs, the spread of repeats, and the noise between identical models, as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console

from efficientbench.basics.grouped import grouped
from efficientbench.metrics.analysis.cautions import KINDS, short_of_text
from efficientbench.metrics.analysis.compare import METRICS, SAME, Comparison
from efficientbench.metrics.analysis.conditions import differences
from efficientbench.metrics.analysis.judging import ORDER
from efficientbench.metrics.analysis.repeats import Group, group_repeats, model_identity
from efficientbench.metrics.formulas.definitions import BYTES_PER_GB
from efficientbench.metrics.formulas.ratio import (
    FIRST_SHARE,
    MIN_REPEATS,
    MOST_REPEATS,
    NO_INTERVAL,
    POWER,
    SIGNIFICANCE,
    Ratio,
    first_figure,
    repeats_to_tell,
)
from efficientbench.metrics.records.record import FIGURES, RunRecord
from efficientbench.metrics.report.table import ABSENT, Table, each_reason, print_table, shortened, spoken

UNITS = {name: FIGURES[name].compared for name in METRICS} | {
    "tokens_to_loss": "tokens to it",
    "time_to_loss_s": "seconds to it",
    "energy_to_loss_j": "joules to it",
    "rollout_tokens_per_s": "rollout tokens/s",
    "rollout_energy_j_per_token": "rollout J/token",
}
FLOOR_METRICS = ("tokens_per_s", "energy_j_per_token", "aec_w", "amu_gb", "validation_loss")
"""Figures whose noise floor is reported."""
_SYMMETRIC = 0.2
"""The largest noise floor that is printed as ±."""
_MOST_NAMED = 8
"""Most models that a line on a noise floor names."""
ROLLOUTS_APART = "Answers that were sampled to learn from; the figures above are of the updates alone:"


def titled(metric: str) -> tuple[str, float]:
    """Return a figure's title with its unit, and that unit as a multiple of the record's."""
    return UNITS[metric], BYTES_PER_GB if metric.endswith("_bytes") else 1


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the differences, the ratio of each figure, the cost to a quality, and each reason for an n/a once."""
    for line in _introduction(comparison):
        console.print(spoken(line))
    console.print()
    print_table(comparison_table(comparison.ratios), console, gap=1)
    if comparison.costs:
        console.print()
        console.print(spoken(f"To a validation loss of {comparison.target_loss:.4g}:"))
        print_table(comparison_table(comparison.costs), console, gap=1)
    if comparison.rollouts:
        console.print()
        console.print(spoken(ROLLOUTS_APART))
        print_table(comparison_table(comparison.rollouts), console, gap=1)
    console.print()
    for line in _bases(comparison):
        console.print(spoken(line))
    if comparison.speed_only:
        console.print(spoken(f"Speed only: {comparison.speed_only}."))
    for line in _cautions(comparison):
        console.print(spoken(line))
    absent = [(UNITS.get(name, "cost to a quality"), reason) for name, reason in comparison.unavailable.items()]
    for line in each_reason(absent, "; "):
        console.print(spoken(line), style="dim")


BEST_OF = (
    "Of each side the best by every second sequence of the validation text. Losses are those of the other sequences, "
    "and their verdicts are corrected for the choice."
)


def title(group: Group) -> str:
    """Return the runs' name, and their number where there are several."""
    repeats = f" × {len(group.records)}" if len(group.records) > 1 else ""
    return f"{group.name}{' (smoke)' if group.first.smoke else ''}{repeats}"


def _introduction(comparison: Comparison) -> list[str]:
    where = f"{comparison.first.first.device_name}, {comparison.first.first.dtype or 'dtype n/a'}"
    lines = [f"A: {title(comparison.first)}, B: {title(comparison.second)}, on {where}"]
    if comparison.identical:
        lines.append("Identical models (A/A test): what they differ by is noise between runs and seeds.")
    elif comparison.model_changes:
        lines.append(f"model: {_changes(comparison.model_changes)}")
    if comparison.other_changes:
        lines.append(f"also different: {_changes(comparison.other_changes)}")
    lines += [f"despite a different {difference}" for difference in comparison.despite]
    lines += [f"{side}: {grid}" for side, grid in zip("AB", comparison.grids, strict=False)]
    lines += [BEST_OF] if comparison.grids else []
    lines += [f"despite {waived}" for waived in comparison.judge.waived]
    lines += [f"left out: {line}" for group in (comparison.first, comparison.second) for line in group.left_out]
    return lines


def _bases(comparison: Comparison) -> list[str]:
    """Return the sentences on the sources of intervals and verdicts, or why there are none."""
    ratios = (*comparison.ratios, *comparison.costs, *comparison.rollouts)
    with_intervals = [ratio for ratio in ratios if ratio.low is not None]
    bases = dict.fromkeys(ratio.basis for ratio in with_intervals or ratios)
    lines = [f"Intervals, 95 %, each figure's own: {'; '.join(bases) or NO_INTERVAL}."]
    if any(f"{ratio.second / ratio.first:.3f}" != f"{ratio.ratio:.3f}" for ratio in ratios):
        lines.append("A and B are means of the runs, as in reports; B/A is the ratio of their geometric means.")
    lines += _objections(ratios)
    if any(ratio.measurable is None and ratio.objection is None for ratio in ratios):
        lines.append(NO_VERDICT)
    if any(ratio.measurable is not None for ratio in ratios):
        first = first_figure(ratios, SAME, comparison.judge.order)
        shares = ""
        if first is not None:
            named = next(UNITS[ratio.metric] for ratio in ratios if _asked(ratio) == first)
            shares = f": {FIRST_SHARE * SIGNIFICANCE:.1%} for {named}, all for the others once that differs"
        lines.append(f"Verdicts: at {SIGNIFICANCE:.0%} for all figures together{shares} (Holm).")
        lines += _more_repeats(comparison)
    floors = [
        f"{UNITS[ratio.metric]} {_both_sides(ratio.noise_floor)}" for ratio in ratios if ratio.noise_floor is not None
    ]
    if floors:
        lines.append(f"A/A floor, within which 95 % of comparisons of identical models stay: {'; '.join(floors)}.")
    return lines


def _both_sides(floor: float) -> str:
    """Return the noise floor, a factor, in percent of a figure: ±2.0%, or where it is large -83.8% to +516.3%."""
    # A factor is as far below 1 as above, but only small ones by as many percent: no figure falls by 516 %.
    return f"±{floor - 1:.1%}" if floor - 1 <= _SYMMETRIC else f"{1 / floor - 1:+.1%} to {floor - 1:+.1%}"


def _more_repeats(comparison: Comparison) -> list[str]:
    """Return the sentence that says how many repeats would tell the differences of which no verdict speaks."""
    needed: dict[str, str] = {}
    for ratio in comparison.ratios:
        if _asked(ratio) in ORDER and ratio.measurable is False and ratio.spread is not None:
            runs = repeats_to_tell(ratio.ratio, ratio.spread)
            takes = f"{UNITS[ratio.metric]} {ratio.change} takes {runs or f'above {MOST_REPEATS}'}"
            needed.setdefault(_asked(ratio), takes)
    return (
        [f"Repeats that tell such differences in {POWER:.0%} of cases: {'; '.join(needed.values())}."] if needed else []
    )


def _asked(ratio: Ratio) -> str:
    """Return the figure that a ratio is of, or a form of."""
    return SAME.get(ratio.metric, ratio.metric)


NO_VERDICT = (
    f"No verdict without the noise between runs: it takes {MIN_REPEATS} repeats on each side (--repeat {MIN_REPEATS}), "
    f"or an A/A floor: {MIN_REPEATS} runs of one model under the same conditions, in the folder beside them."
)


def _objections(ratios: Sequence[Ratio]) -> list[str]:
    """Return a sentence for each reason why figures were not judged."""
    figures = grouped((ratio.objection.why, UNITS[ratio.metric]) for ratio in ratios if ratio.objection is not None)
    return [f"No verdict on {'; '.join(named)}: {why}." for why, named in figures.items()]


def _cautions(comparison: Comparison) -> list[str]:
    """Return the sentences of reports on both sides' runs, behind the side; `speed_only` has the reason for that."""
    sides = {"A": comparison.first, "B": comparison.second}
    return [
        f"{side}: {sentence}"
        for kind in KINDS
        if kind.sentences is not short_of_text
        for side, runs in sides.items()
        for sentence in kind.sentences(runs.records)
    ]


def _changes(changes: dict[str, tuple[object, object]]) -> str:
    return ", ".join(f"{key.removeprefix('model.')} {one} → {other}" for key, (one, other) in changes.items())


def comparison_table(ratios: Sequence[Ratio], titled: Callable[[str], tuple[str, float]] = titled) -> Table:
    """Return a row for each figure: both sides, their ratio with its interval, and the verdict."""
    rows = []
    for ratio in ratios:
        title, scale = titled(ratio.metric)
        interval = ABSENT if ratio.low is None or ratio.high is None else f"{ratio.low:.3f}–{ratio.high:.3f}"
        figures = (f"{ratio.first / scale:.4g}", f"{ratio.second / scale:.4g}", f"{ratio.ratio:.3f}", interval)
        rows.append((title, *figures, ratio.verdict))
    return Table(("figure", "A", "B", "B/A", "95 %", "verdict"), rows, text_columns=(0, 5))


def print_spread(group: Group, console: Console) -> None:
    """Print each figure's mean over the repeats, its 95 % confidence interval and the spread between runs."""
    seeds = ", ".join(str(record.seed) for record in group.records)
    smoke = " (smoke)" if group.first.smoke else ""
    console.print()
    count = len(group.records)
    runs = f"1 run (seed {seeds})" if count == 1 else f"{count} runs (seeds {seeds})"
    console.print(spoken(f"{group.name}{smoke}, {runs}"))
    rows = []
    for metric in METRICS:
        spread = group.spread(metric)
        if spread is None:
            continue
        title, scale = titled(metric)
        interval = ABSENT
        if spread.low is not None and spread.high is not None:
            interval = f"{spread.low / scale:.4g} to {spread.high / scale:.4g}"
        noise = ABSENT if spread.std is None or not spread.mean else f"{spread.std / spread.mean:.1%}"
        rows.append((title, f"{spread.mean / scale:.4g}", interval, noise))
    print_table(Table(("figure", "mean", "95 % interval", "std / mean"), rows), console)


@dataclass(frozen=True)
class NoiseFloor:
    """An A/A test: runs of one model under several names and the same conditions."""

    names: tuple[str, ...]
    largest: dict[str, float]
    """Figure → the largest mean over the smallest, minus 1."""

    def __str__(self) -> str:
        parts = ", ".join(f"{UNITS[metric]} {part:.2%}" for metric, part in self.largest.items())
        return f"Noise floor, from the identical models {shortened(self.names, _MOST_NAMED)}: {parts}."


def noise_floors(records: Sequence[RunRecord]) -> list[NoiseFloor]:
    """Return a noise floor for each model that ran under several names and the same conditions."""
    alike: list[list[Group]] = []
    of_model: dict[str, list[list[Group]]] = {}
    for group in group_repeats(record for record in records if record.status == "completed"):
        first = group.first
        known = of_model.setdefault(model_identity(first), [])
        found = next((same for same in known if not differences(same[0].first, first)), None)
        if found is None:
            known.append([group])
            alike.append(known[-1])
        else:
            found.append(group)
    floors = [_floor(same) for same in alike if len({group.name for group in same}) > 1]
    return [floor for floor in floors if floor.largest]


def _floor(groups: Sequence[Group]) -> NoiseFloor:
    largest = {}
    for metric in FLOOR_METRICS:
        spreads = [group.spread(metric) for group in groups]
        means = [spread.mean for spread in spreads if spread is not None and spread.mean > 0]
        if len(means) > 1:
            largest[metric] = max(means) / min(means) - 1
    return NoiseFloor(tuple(dict.fromkeys(group.name for group in groups)), largest)
