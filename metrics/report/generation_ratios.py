"""Generation of two models side by side, as text."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console
from rich.text import Text

from efficientbench.metrics.analysis.generation_ratios import Compared, compare_generation
from efficientbench.metrics.analysis.generation_sides import Generating
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.ratio import MIN_REPEATS, SIGNIFICANCE, Ratio
from efficientbench.metrics.report.generation import titled
from efficientbench.metrics.report.table import ABSENT, Table, print_table

HEADER = ("figure", "A", "B", "B/A", "95 %", "verdict")


def print_generation_ratios(sides: Sequence[Generating], despite: Collection[str], console: Console) -> None:
    """Print the ratio of each figure at every combination that was measured of both, or why nothing is compared."""
    console.print()
    try:
        compared = compare_generation(sides, despite)
    except MetricsError as error:
        console.print(Text(f"{ABSENT} generation: {error}"), style="dim")
        return
    for each in compared:
        prompt, batch, new = each.combination
        console.print(Text(f"Generation, prompts of {prompt:,} tokens, batch {batch:,}, {new:,} new tokens:"))
        print_table(Table(HEADER, _lines(each), text_columns=(0, 5)), console, gap=1)
        console.print()
    for note in _notes(compared):
        console.print(Text(note))
    engines = dict.fromkeys(record.engine for _, made in sides for record in made)
    console.print(Text(f"Engine: {' against '.join(engines)}. No figures of vLLM's, SGLang's or another server's."))
    reasons: dict[str, dict[str, None]] = {}
    for each in compared:
        for name, reason in each.missing.items():
            reasons.setdefault(reason, {})[titled(name)[0]] = None
    for reason, titles in reasons.items():
        console.print(Text(f"{ABSENT} {', '.join(titles)}: {reason}"), style="dim")


def _lines(compared: Compared) -> list[tuple[str, ...]]:
    lines = [_cells(ratio) for ratio in compared.ratios]
    one, other = compared.cache_bytes
    if one and other:
        title, unit = titled("cache_bytes")
        lines.append((title, f"{one / unit:.4g}", f"{other / unit:.4g}", f"{other / one:.3f}", "", "counted"))
    return lines


def _cells(ratio: Ratio) -> tuple[str, ...]:
    title, unit = titled(ratio.metric)
    interval = ABSENT if ratio.low is None or ratio.high is None else f"{ratio.low:.3f}–{ratio.high:.3f}"
    figures = (f"{ratio.first / unit:.4g}", f"{ratio.second / unit:.4g}", f"{ratio.ratio:.3f}", interval)
    return (title, *figures, ratio.verdict)


def _notes(compared: Sequence[Compared]) -> list[str]:
    judged = [ratio.measurable is not None for each in compared for ratio in each.ratios]
    notes = []
    if not all(judged):
        notes.append(f"No verdict without the noise between measurements: it takes {MIN_REPEATS} repeats of each side.")
    if any(judged):
        notes.append(f"Verdicts: at {SIGNIFICANCE:.0%} for all figures of generation together, by Holm's correction.")
    return notes
