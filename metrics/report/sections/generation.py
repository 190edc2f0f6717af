"""Generation in reports: each record beside the training of the same run, the table, and `generation.csv`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.grouped import grouped
from efficientbench.metrics.analysis.generation import Compared, Generating, compare_generation
from efficientbench.metrics.formulas.ratio import MIN_REPEATS, SIGNIFICANCE
from efficientbench.metrics.records.figure import Figure, percent
from efficientbench.metrics.records.generation.generation import GENERATION_FIGURES, GenerationRecord, GenerationRow
from efficientbench.metrics.records.record import FIGURES, RunRecord
from efficientbench.metrics.report.columns import UNAVAILABLE, csv_text, joined
from efficientbench.metrics.report.comparison import comparison_table
from efficientbench.metrics.report.headline import told_apart
from efficientbench.metrics.report.table import ABSENT, Table, each_reason, number, print_table, print_wide_table


def print_generation_ratios(sides: Sequence[Generating], despite: Collection[str], console: Console) -> None:
    """Print the ratio of each figure at every combination measured for both models, or why nothing is compared."""
    console.print()
    try:
        compared = compare_generation(sides, despite)
    except MetricsError as error:
        console.print(Text(f"{ABSENT} generation: {error}"), style="dim")
        return
    for each in compared:
        prompt, batch, new = each.combination
        console.print(Text(f"Generation, prompts of {prompt:,} tokens, batch {batch:,}, {new:,} new tokens:"))
        table = comparison_table(each.ratios, titled)
        print_table(replace(table, rows=[*table.rows, *_cache(each)]), console, gap=1)
        console.print()
    for note in _notes(compared):
        console.print(Text(note))
    widths = dict.fromkeys(record.quantization for _, made in sides for record in made)
    if set(widths) != {"none"}:
        console.print(Text(f"Weights: {' against '.join(widths)}."))
    engines = dict.fromkeys(record.engine for _, made in sides for record in made)
    console.print(Text(f"Engine: {' against '.join(engines)}. No figures of vLLM's, SGLang's or another server's."))
    absent = [(titled(name)[0], reason) for each in compared for name, reason in each.missing.items()]
    for line in each_reason(absent):
        console.print(Text(line), style="dim")


def _cache(compared: Compared) -> list[tuple[str, ...]]:
    """Return the row of both caches' sizes; nothing where one is not known."""
    one, other = compared.cache_bytes
    if not one or not other:
        return []
    title, unit = titled("cache_bytes")
    return [(title, f"{one / unit:.4g}", f"{other / unit:.4g}", f"{other / one:.3f}", "", "counted")]


def _notes(compared: Sequence[Compared]) -> list[str]:
    judged = [ratio.measurable is not None for each in compared for ratio in each.ratios]
    notes = []
    if not all(judged):
        notes.append(f"No verdict without the noise between measurements: it takes {MIN_REPEATS} repeats of each side.")
    if any(judged):
        notes.append(f"Verdicts: at {SIGNIFICANCE:.0%} for all figures of generation together, by Holm's correction.")
    return notes


CSV_NAME = "generation.csv"
TITLE = "Generation"
OF_TRAINING = ("tokens_per_s", "energy_j_per_token", "validation_loss")
"""Figures of the training in each row; their columns' names begin with `training_`."""
NO_TRAINING = "no training of this run is in the folder"

COLUMNS: dict[str, Figure] = {
    **GENERATION_FIGURES,
    "failure": Figure("", "why the combination could not be measured; empty where it was"),
    **{f"training_{name}": FIGURES[name] for name in OF_TRAINING},
    UNAVAILABLE: Figure("", "for each n/a of the row 'name: reason', joined by ' | '"),
}
"""Every column of generation.csv, in the order of the file → its description."""

_SHOWN: dict[str, tuple[str, str, float]] = {
    "ttft_s_p50": ("TTFT p50, ms", ",.1f", 1e-3),
    "ttft_s_p95": ("p95, ms", ",.1f", 1e-3),
    "prefill_tokens_per_s": ("prefill tokens/s", ",.0f", 1),
    "decode_tokens_per_s": ("decode tokens/s", ",.1f", 1),
    "decode_time_s_ci_high": ("±95%", "", 1),
    "decode_time_s": ("a token, ms", ",.2f", 1e-3),
    "cache_bytes": ("cache, MB", ",.2f", 1e6),
    "cache_bytes_per_token": ("B/token", ",.0f", 1),
    "bandwidth_utilization": ("bandwidth", ".1%", 1),
    "prefill_energy_j_per_token": ("prefill J/token", ".3g", 1),
    "decode_energy_j_per_token": ("decode J/token", ".3g", 1),
    "decode_amu_gb": ("AMU, GB", ".2f", 1),
    "decode_pcu": ("PCU", ".1%", 1),
    "decode_aec_w": ("AEC, W", ".1f", 1),
}
"""Figure → its title in the table, its format, and the title's unit as a multiple of the record's."""


@dataclass(frozen=True)
class Generated:
    """One model's record of generation, beside its training."""

    record: GenerationRecord
    name: str
    """The run's name, unique in the report."""
    trained: int | None
    """Index of the same run's training among the report's records; None if there is none."""


def beside(generations: Sequence[GenerationRecord], records: Sequence[RunRecord]) -> list[Generated]:
    """Return each record of generation with the training that belongs to it.

    The training has the same run name and model. Of several, the one with the same seed is taken, else the first.
    """
    names = told_apart([(_name(each), each.seed) for each in generations])
    found = []
    for each, name in zip(generations, names, strict=True):
        same = [place for place, record in enumerate(records) if _same_run(each, record)]
        of_seed = [place for place in same if records[place].seed == each.seed]
        found.append(Generated(each, name, next(iter(of_seed or same), None)))
    return found


def _name(record: GenerationRecord) -> str:
    quantized = "" if record.quantization == "none" else f" {record.quantization}"
    return f"{record.run}{' (smoke)' if record.smoke else ''}{quantized}"


def _same_run(generation: GenerationRecord, record: RunRecord) -> bool:
    named = generation.run == record.run and generation.smoke == record.smoke
    return named and generation.config.get("model") == record.config.get("model")


def generation_table(generated: Sequence[Generated], records: Sequence[RunRecord]) -> Table:
    """Return a row for each combination of prompt, batch and new tokens, beside its run's training if any has one."""
    titles = [title for title, _, _ in _SHOWN.values()]
    beside_training = any(each.trained is not None for each in generated)
    header = ("run", "prompt", "batch", "new", *titles)
    header = (*header, "training tokens/s", "training J/token") if beside_training else header
    rows = []
    for each in generated:
        trained = None if each.trained is None else records[each.trained]
        for row in each.record.rows:
            sizes = (f"{row.prompt_tokens:,}", f"{row.batch:,}", f"{row.max_new_tokens:,}")
            figures = (shown_cell(name, row) for name in _SHOWN)
            of_training = (
                number(trained.tokens_per_s if trained else None, ",.0f"),
                number(trained.energy_j_per_token if trained else None, ".3g"),
            )
            rows.append((each.name, *sizes, *figures, *(of_training if beside_training else ())))
    return Table(header, rows, notes=generation_notes(generated))


def shown_cell(name: str, row: GenerationRow) -> str:
    """Return a figure's cell, in the unit of its title."""
    _, form, unit = _SHOWN[name]
    value = row.value(name)
    if name == "decode_time_s_ci_high":
        noise = relative_interval(row)
        return ABSENT if noise is None else f"±{percent(noise)}"
    return number(value, form, unit)


def titled(name: str) -> tuple[str, float]:
    """Return a figure's title in tables, and the title's unit as a multiple of the record's."""
    title, _, unit = _SHOWN[name]
    return title, unit


def relative_interval(row: GenerationRow) -> float | None:
    """Return half the 95 % interval of the time per output token over its mean; None where it is not known."""
    mean, low, high = (row.value(f"decode_time_s{end}") for end in ("", "_ci_low", "_ci_high"))
    return None if not mean or low is None or high is None else (high - low) / 2 / mean


def generation_notes(generated: Sequence[Generated]) -> tuple[str, ...]:
    """Return the notes: the engine, how each run decoded, doubts, failures, and the reason for each n/a."""
    if not generated:
        return ()
    engines = dict.fromkeys(each.record.engine for each in generated)
    notes = [f"Engine: {engine}. No figures of vLLM's, SGLang's or another server's." for engine in engines]
    notes += _grouped("Decoding", {each.name: each.record.decode_path for each in generated})
    notes += _grouped("Weights", {each.name: _weights(each.record) for each in generated})
    notes += _grouped("On", {each.name: f"{each.record.device_name}, {each.record.dtype}" for each in generated})
    stopped = [each.name for each in generated if each.record.status == "stopped"]
    notes += [f"Stopped before the last combination: {', '.join(stopped)}."] if stopped else []
    notes += _doubts(generated)
    absent: list[tuple[str, str]] = []
    for each in generated:
        for row in each.record.rows:
            place = f"{each.name}, prompt {row.prompt_tokens:,}, batch {row.batch:,}"
            if row.failure is not None:
                notes.append(f"{place}: not measured: {row.failure}")
                continue
            absent += [(titled(name)[0], row.why(name) or NO_TRAINING) for name in _SHOWN if row.value(name) is None]
    notes += each_reason(absent)
    alone = [each.name for each in generated if each.trained is None]
    notes += [f"{ABSENT} training ({', '.join(alone)}): {NO_TRAINING}"] if alone else []
    return tuple(dict.fromkeys(notes))


def _weights(record: GenerationRecord) -> str:
    """Return whose weights were measured, their width and their size in memory."""
    width = "" if record.quantization == "none" else f", {record.quantization}"
    size = "" if record.weight_bytes is None else f", {record.weight_bytes / 1e6:,.1f} MB"
    return f"{record.weights}{width}{size}"


def _doubts(generated: Sequence[Generated]) -> list[str]:
    """Return the reasons to doubt figures: an energy counter, or another process on a device."""
    found: list[str] = []
    disturbed: dict[str, None] = {}
    for each in generated:
        for row in each.record.rows:
            for name, phase in row.phases.items():
                if phase.energy_doubt is not None:
                    place = f"{each.name}, prompt {row.prompt_tokens:,}, batch {row.batch:,}, {name}"
                    found.append(f"{place}: {phase.energy_doubt}.")
                if phase.disturbances:
                    disturbed[each.name] = None
    return [*found, *([f"Another process used a device of {', '.join(disturbed)} meanwhile."] if disturbed else [])]


def _grouped(what: str, texts: dict[str, str]) -> list[str]:
    """Return a sentence with each different text once, and with its runs where there are several texts."""
    if len(set(texts.values())) == 1:
        return [f"{what}: {next(iter(texts.values()))}."]
    runs = grouped((text, name) for name, text in texts.items())
    listed = (f"{text} ({', '.join(names)})" for text, names in runs.items())
    return [f"{what}: {'; '.join(listed)}."]


def print_generation(generated: Sequence[Generated], records: Sequence[RunRecord], console: Console) -> None:
    """Print the table and its notes; nothing where nothing was generated."""
    if not generated:
        return
    table = generation_table(generated, records)
    console.print(Text(TITLE, style="italic"))
    print_wide_table(table, console)
    for note in table.notes:
        console.print(Text(note), style="dim")
    console.print()


def generation_csv(generated: Sequence[Generated], records: Sequence[RunRecord]) -> str:
    """Return one row for each combination, at full precision."""
    return csv_text(COLUMNS, (_values(each, row, records) for each in generated for row in each.record.rows))


def _values(each: Generated, row: GenerationRow, records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the cells of a row by column."""
    of_record = {name: getattr(each.record, name) for name in GENERATION_FIGURES if hasattr(each.record, name)}
    values = of_record | {name: row.value(name) for name in GENERATION_FIGURES if name not in of_record}
    reasons = {name: row.why(name) or ABSENT for name in values if name not in of_record and values[name] is None}
    trained = None if each.trained is None else records[each.trained]
    for name in OF_TRAINING:
        column = f"training_{name}"
        values[column] = trained and getattr(trained, name)
        if values[column] is None:
            reasons[column] = NO_TRAINING if trained is None else trained.unavailable.get(name, ABSENT)
    return values | {"failure": row.failure or "", UNAVAILABLE: joined(reasons)}
