"""Lays the five metrics out as in the tables of EfficientLLM (arXiv 2505.13840, tables 3 to 5).

Method, parameters, the setting that the table names (micro batch size, context length, top k), PPL, AMU, AL, TT, AEC
and GPU hours are the paper's columns. PCU, which the paper's pretraining tables lack, follows AMU. J/token and the
ranks by J/token and by AEC follow, since a table of mean power alone ranks a slow, idle device as thrifty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from efficientbench.basics.grouped import grouped
from efficientbench.metrics.analysis.conditions import group
from efficientbench.metrics.formulas.ratio import MIN_REPEATS
from efficientbench.metrics.records.figure import count
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.headline import SMOKE_NOTE, name, relative_interval
from efficientbench.metrics.report.table import ABSENT, Table, escape, markdown_table, number, print_wide_table


@dataclass(frozen=True)
class _Layout:
    """One of the paper's tables."""

    title: str
    methods: Mapping[str, str]
    """Variant → the paper's name for it, in the paper's order."""
    setting: str
    setting_of: Callable[[RunRecord], str]
    ranks_across_sizes: bool
    """Whether rows of all sizes are alternatives to each other."""
    further: Mapping[str, Callable[[RunRecord], str]] = field(default_factory=dict)
    """Further columns of this table alone: title → what returns its cell."""


def _top_k(record: RunRecord) -> str:
    moe = record.section("model").get("moe")
    return str(moe.get("top_k", ABSENT)) if isinstance(moe, dict) else "–"


_LAYOUTS = (
    _Layout(
        "Attention mechanisms",
        {
            **{"mqa": "MQA", "gqa": "GQA", "mla": "MLA", "nsa": "NSA"},
            **{"gated": "Gated GQA", "swa_3to1": "SWA 3:1", "swa_5to1_sinks": "SWA 5:1, sinks"},
            **{"gdn_3to1": "GDN 3:1", "gdn": "GDN", "kda_3to1": "KDA 3:1"},
            **{"mamba2_3to1": "Mamba-2 3:1", "mamba2": "Mamba-2"},
        },
        "Micro Batch Size",
        lambda record: str(record.micro_batch_size),
        False,
    ),
    _Layout(
        "Positional encodings",
        {
            "rope": "RoPE",
            "absolute": "Absolute",
            "learnable_absolute": "Learnable Absolute",
            "relative": "Relate",
            "none": "None",
        },
        "Context Length",
        lambda record: f"{record.seq_len:,}",
        False,
    ),
    _Layout(
        "Parameter-efficient fine-tuning",
        {
            "lora": "LoRA",
            "lora_plus": "LoRA+",
            "rslora": "RSLoRA",
            "dora": "DoRA",
            "pissa": "PiSSA",
            "freeze": "Freeze",
            "full": "Full",
        },
        "Trainable",
        lambda record: number(record.trainable_parameters, ",d"),
        False,
        {
            "ST (Samples/param/s)": lambda record: number(record.st_samples_per_param_s, ".2e"),
            "samples/s": lambda record: number(record.examples_per_s, ",.2f"),
            "J/sample": lambda record: number(record.energy_j_per_sample, ".4g"),
        },
    ),
    _Layout("Mixture of experts", {"dense": "Dense Model", "moe": "MoE Model"}, "Top K", _top_k, True),
)


OTHER_RUNS = "Other runs"
SUITES = (*(layout.title for layout in _LAYOUTS), OTHER_RUNS)
"""Titles of the suites, in the order of reports."""
BASELINES = {"gqa": "attention", "rope": "position", "full": "", "dense": "moe"}
"""Baselines, the variants that the others of their suite are compared with, where they ran → the part of a model that
the suite is about."""


def across_sizes(suite: str) -> bool:
    """Return whether rows of all sizes are alternatives to each other in a suite."""
    return any(layout.title == suite and layout.ranks_across_sizes for layout in _LAYOUTS)


def place_in_suite(variant: str) -> int:
    """Return the index of a variant in its suite; variants that no suite names come last."""
    return next((place for layout in _LAYOUTS for place, name in enumerate(layout.methods) if name == variant), _LAST)


_LAST = max(len(layout.methods) for layout in _LAYOUTS)


def suite_of(variant: str, model: Mapping[str, Any] = {}, beside: Mapping[str, Mapping[str, Any]] = {}) -> str:
    """Return the title of a variant's table: that of a baseline beside it, where no table names the variant.

    Args:
        variant: its name.
        model: its model, as a configuration has it.
        beside: the baselines that ran under the same conditions → their models. Of several the variant belongs to the
            one from which it differs in nothing but the part that the suite is about, else to the first.
    """
    for layout in _LAYOUTS:
        if variant in layout.methods:
            return layout.title
    found = [name for name in BASELINES if name in beside]
    alike = [name for name in found if _differing(model, beside[name]) == [BASELINES[name]]]
    return suite_of((alike or found)[0]) if found else OTHER_RUNS


def _differing(model: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [part for part in BASELINES.values() if model.get(part) != other.get(part)]


def suites_of(records: Sequence[RunRecord]) -> list[str]:
    """Return the title of each run's table; see `suite_of`."""
    keys = [(record.size, group(record)) for record in records]
    beside: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for record, key in zip(records, keys, strict=True):
        if record.variant in BASELINES and record.status == "completed":
            beside.setdefault(key, {})[record.variant] = record.section("model")
    return [
        suite_of(record.variant, record.section("model"), beside.get(key, {}))
        for record, key in zip(records, keys, strict=True)
    ]


def paper_tables(records: Sequence[RunRecord]) -> list[Table]:
    """Return the paper's tables, each with its runs; runs that belong to none get a table of their own."""
    rest = _Layout(OTHER_RUNS, {}, "Context Length", lambda record: f"{record.seq_len:,}", False)
    sets = grouped(zip(suites_of(records), records, strict=True))
    return [
        _table(layout, sorted(sets[layout.title], key=lambda record: place_in_suite(record.variant)))
        for layout in (*_LAYOUTS, rest)
        if layout.title in sets
    ]


def _table(layout: _Layout, records: Sequence[RunRecord]) -> Table:
    groups: dict[tuple[object, ...], list[RunRecord]] = {}
    for record in sorted(records, key=lambda record: record.size):
        size = "" if layout.ranks_across_sizes else record.size
        groups.setdefault((size, group(record, energy=True)), []).append(record)
    rows, sentences, all_ranked = [], [], list[RunRecord]()
    for members in groups.values():
        whole = [record for record in members if record.status == "completed"]
        ranked = {id(item.record): item for item in rank(whole)}
        all_ranked += [item.record for item in ranked.values()]
        rows += [_row(layout, record, ranked.get(id(record))) for record in members]
        sentences += disagreements(whole)
    header = (
        *("Method", "Parameters", layout.setting, "PPL", "AMU (GB)", "PCU", "AL (s/iter)", "TT (Tokens/param/s)"),
        *("AEC (W)", "GPU Hours", "J/token", "rank by J/token", "rank by AEC"),
        *layout.further,
    )
    return Table(
        header, rows, (0, 1), layout.title, _notes(rows, sentences, all_ranked) if all_ranked else (NO_ENERGY,)
    )


def _row(layout: _Layout, record: RunRecord, ranked: Ranked | None) -> tuple[str, ...]:
    accelerated = record.device_scope in ("gpu", "npu")
    hours = record.devices * record.duration_s / 3600 if accelerated else None
    method = name(record).replace(f"_{record.size}", "", 1)
    if record.variant in layout.methods:
        method = layout.methods[record.variant] + method.removeprefix(record.variant)
    return (
        method,
        _parameters(record),
        layout.setting_of(record),
        number(record.perplexity, ",.2f"),
        number(record.amu_gb, ",.2f"),
        number(record.pcu, ".3f"),
        number(record.al_s, ".4f"),
        number(record.tt_tokens_per_param_s, ".2e"),
        number(record.aec_w, ",.2f"),
        number(hours, ",.3f"),
        number(record.energy_j_per_token, ".4g"),
        _place(ranked.by_token, ranked.tied_by_token) if ranked else ABSENT,
        _place(ranked.by_power, ranked.tied_by_power) if ranked else ABSENT,
        *(cell(record) for cell in layout.further.values()),
    )


def _parameters(record: RunRecord) -> str:
    """Return the size of a model; of a scaled-down one, which has it in name alone, its parameters too."""
    size = record.size.replace("x", "×")
    if not record.smoke:
        return size
    return f"{ABSENT if record.parameters is None else count(record.parameters)} (smoke of {size})"


def _place(place: int, tied: bool) -> str:
    return f"≈ {place}" if tied else str(place)


TIES = "≈: not set apart from the place before by more than the noise of the two runs' step times."
NO_VERDICT = (
    f"Runs of fewer than {MIN_REPEATS} repeats stand in the order of their figures, without a verdict: the noise "
    f"between runs is not known (--repeat {MIN_REPEATS})."
)
AGREE = "The ranking by J/token and the ranking by AEC agree, within the noise."
NO_ENERGY = "No ranking by energy: it was not measured in these runs (report.csv says why, under energy_j)."


def _notes(rows: Sequence[Sequence[str]], disagreements: Sequence[str], ranked: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return the notes on the table's two rankings."""
    ties = [TIES] if any("≈" in cell for row in rows for cell in row) else []
    if all(record.repeats >= MIN_REPEATS for record in ranked):
        return *(disagreements or (AGREE,)), *ties
    return *disagreements, NO_VERDICT, *ties


def print_paper(records: Sequence[RunRecord], console: Console) -> None:
    """Print the tables, each with its notes."""
    for table in paper_tables(records):
        console.print(Text(table.title, style="bold underline"))
        print_wide_table(table, console)
        for sentence in table.notes:
            console.print(Text(sentence))
        console.print()
    if any(record.smoke for record in records):
        console.print(Text(SMOKE_NOTE))


def paper_markdown(records: Sequence[RunRecord]) -> str:
    """Return the tables as Markdown."""
    parts = ["# The five metrics in the layout of EfficientLLM (arXiv 2505.13840)"]
    for table in paper_tables(records):
        parts += [f"## {table.title}", markdown_table(table), escape(" ".join(table.notes))]
    if any(record.smoke for record in records):
        parts.append(SMOKE_NOTE)
    return "\n\n".join(parts) + "\n"


@dataclass(frozen=True)
class Ranked:
    """A run's two ranks among the runs that it was ranked with; 1 is the least."""

    record: RunRecord
    by_token: int
    by_power: int
    tied_by_token: bool
    """Whether it differs from the run one rank before by no more than the noise of their step times."""
    tied_by_power: bool


def rank(records: Sequence[RunRecord]) -> list[Ranked]:
    """Rank the runs that have both J/token and AEC, undoubted, by J/token. The runs must be comparable."""
    measured = [each for each in records if _per_token(each) > 0 and _power(each) > 0 and not each.energy_doubt]
    by_token = sorted(measured, key=_per_token)
    by_power = sorted(measured, key=_power)
    place = {id(record): index for index, record in enumerate(by_power)}
    ranked = []
    for index, record in enumerate(by_token):
        other = place[id(record)]
        cheaper, idler = by_token[max(index - 1, 0)], by_power[max(other - 1, 0)]
        tied_by_token = index > 0 and not _clear(_per_token(cheaper), _per_token(record), cheaper, record)
        tied_by_power = other > 0 and not _clear(_power(idler), _power(record), idler, record)
        ranked.append(Ranked(record, index + 1, other + 1, tied_by_token, tied_by_power))
    return ranked


def disagreements(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each run that AEC ranks ahead of others whose tokens clearly cost less energy.

    Clearly means by more than the noise of the step times. Sentences on runs of too few repeats need `NO_VERDICT` too.
    """
    ranked = [item.record for item in rank(records)]
    per_token, power, noise = (
        np.array([figure(record) for record in ranked]) for figure in (_per_token, _power, _step_noise)
    )
    found = []
    for index, idle in enumerate(ranked):
        margin = 1 + (noise[:index] + noise[index])
        only_idles = (per_token[:index] * margin < per_token[index]) & (power[index] * margin < power[:index])
        ahead = [ranked[other] for other in np.flatnonzero(only_idles)]
        if not ahead:
            continue
        times = [_per_token(idle) / _per_token(other) for other in ahead]
        most = f"{min(times):.2f} to {max(times):.2f}" if len(times) > 1 else f"{times[0]:.2f}"
        others = ", ".join(f"{name(other)} ({_power(other):,.0f} W)" for other in ahead)
        found.append(
            f"AEC ranks {name(idle)} ({_power(idle):,.0f} W) ahead of {others}, J/token behind: a token costs it "
            f"{most} times as much energy."
        )
    return found


def _clear(less: float, more: float, one: RunRecord, other: RunRecord) -> bool:
    """Return whether `less` is below `more` by more than the noise of both runs' step times."""
    return less * (1 + (_noise(one) + _noise(other))) < more


def _noise(record: RunRecord) -> float:
    """Return the relative noise between the repeats' step times; infinite where too few repeats show it."""
    return _step_noise(record) if record.repeats >= MIN_REPEATS else math.inf


def _step_noise(record: RunRecord) -> float:
    """Return the relative noise of the step times, for a single run that within the run; infinite if not known."""
    noise = relative_interval(record)
    return math.inf if noise is None else noise


def _per_token(record: RunRecord) -> float:
    return record.energy_j_per_token or 0.0


def _power(record: RunRecord) -> float:
    return record.aec_w or 0.0
