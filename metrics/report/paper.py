"""The five metrics laid out as in the tables of EfficientLLM (arXiv 2505.13840, tables 3 to 5).

Method, parameters, the setting that the table names (micro batch size, context length, top k), PPL, AMU, AL, TT, AEC
and GPU hours stand as they do there. PCU, which the paper leaves out of its pretraining tables, stands beside AMU.
Behind them come J/token and the ranks by both, since a table of mean power alone ranks a slow, idle device as thrifty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from efficientbench.metrics.analysis.conditions import group
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.energy import Ranked, disagreements, rank
from efficientbench.metrics.report.headline import ABSENT, SMOKE_NOTE, name
from efficientbench.metrics.report.table import print_columns
from efficientbench.metrics.report.text import markdown_table


@dataclass(frozen=True)
class _Layout:
    """One of the paper's tables."""

    title: str
    methods: Mapping[str, str]
    """Variant → the paper's name for it, in the paper's order."""
    setting: str
    setting_of: Callable[[RunRecord], str]
    ranks_across_sizes: bool
    """Whether its rows are alternatives to each other whatever their size."""


def _top_k(record: RunRecord) -> str:
    model = record.config.get("model")
    moe = model.get("moe") if isinstance(model, dict) else None
    return str(moe.get("top_k", ABSENT)) if isinstance(moe, dict) else "–"


_LAYOUTS = (
    _Layout(
        "Attention mechanisms",
        {"mqa": "MQA", "gqa": "GQA", "mla": "MLA", "nsa": "NSA"},
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
    _Layout("Mixture of experts", {"dense": "Dense Model", "moe": "MoE Model"}, "Top K", _top_k, True),
)


@dataclass(frozen=True)
class PaperTable:
    """One table as text, and what its two rankings disagree on."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    disagreements: tuple[str, ...]
    ranked: bool
    """Whether there was energy to rank by."""


def paper_tables(records: Sequence[RunRecord]) -> list[PaperTable]:
    """The paper's tables, each with the runs that belong to it; runs of other variants in a table of their own."""
    known = {variant for layout in _LAYOUTS for variant in layout.methods}
    others = {record.variant: record.variant for record in records if record.variant not in known}
    rest = _Layout("Other runs", others, "Context Length", lambda record: f"{record.seq_len:,}", False)
    tables = []
    for layout in (*_LAYOUTS, rest):
        chosen = [record for variant in layout.methods for record in records if record.variant == variant]
        if chosen:
            tables.append(_table(layout, chosen))
    return tables


def _table(layout: _Layout, records: Sequence[RunRecord]) -> PaperTable:
    groups: dict[tuple[object, ...], list[RunRecord]] = {}
    for record in sorted(records, key=lambda record: record.size):
        size = "" if layout.ranks_across_sizes else record.size
        groups.setdefault((size, group(record, energy=True)), []).append(record)
    rows, sentences, ranked_any = [], [], False
    for members in groups.values():
        whole = [record for record in members if record.status == "completed"]
        ranked = {id(item.record): item for item in rank(whole)}
        ranked_any = ranked_any or bool(ranked)
        rows += [_row(layout, record, ranked.get(id(record))) for record in members]
        sentences += disagreements(whole)
    header = (
        *("Method", "Parameters", layout.setting, "PPL", "AMU (GB)", "PCU", "AL (s/iter)", "TT (Tokens/param/s)"),
        *("AEC (W)", "GPU Hours", "J/token", "rank by J/token", "rank by AEC"),
    )
    return PaperTable(layout.title, header, tuple(rows), tuple(sentences), ranked_any)


def _row(layout: _Layout, record: RunRecord, ranked: Ranked | None) -> tuple[str, ...]:
    accelerated = record.device_scope in ("gpu", "npu")
    hours = record.devices * record.duration_s / 3600 if accelerated else None
    return (
        layout.methods[record.variant] + name(record).removeprefix(f"{record.variant}_{record.size}"),
        record.size.replace("x", "×"),
        layout.setting_of(record),
        _text(record.perplexity, ",.2f"),
        _text(record.amu_gb, ",.2f"),
        _text(record.pcu, ".3f"),
        _text(record.al_s, ".4f"),
        _text(record.tt_tokens_per_param_s, ".2e"),
        _text(record.aec_w, ",.2f"),
        _text(hours, ",.3f"),
        _text(record.energy_j_per_token, ".4g"),
        _place(ranked.by_token, ranked.tied_by_token) if ranked else ABSENT,
        _place(ranked.by_power, ranked.tied_by_power) if ranked else ABSENT,
    )


def _text(value: float | None, form: str) -> str:
    return ABSENT if value is None else format(value, form)


def _place(place: int, tied: bool) -> str:
    return f"≈ {place}" if tied else str(place)


TIES = "≈: differs from the place before by less than the noise of the two runs' step times."
AGREE = "The ranking by J/token and the ranking by AEC agree, within the noise."
NO_ENERGY = "No ranking by energy: it was not measured in these runs (report.csv says why, under energy_j)."


def verdict(table: PaperTable) -> list[str]:
    """What to say of the table's two rankings."""
    if not table.ranked:
        return [NO_ENERGY]
    ties = [TIES] if any("≈" in cell for row in table.rows for cell in row) else []
    return [*(table.disagreements or (AGREE,)), *ties]


def print_paper(records: Sequence[RunRecord], console: Console) -> None:
    """Print the tables, each with what its rankings disagree on."""
    for table in paper_tables(records):
        console.print(Text(table.title, style="bold underline"))
        names = [" ".join(row[:2]) for row in table.rows]
        cells = {title: [row[at] for row in table.rows] for at, title in enumerate(table.header) if at >= 2}
        print_columns(" ".join(table.header[:2]), names, cells, console)
        for sentence in verdict(table):
            console.print(Text(sentence))
        console.print()
    if any(record.smoke for record in records):
        console.print(Text(SMOKE_NOTE))


def paper_markdown(records: Sequence[RunRecord]) -> str:
    """The same as Markdown."""
    parts = ["# The five metrics in the layout of EfficientLLM (arXiv 2505.13840)"]
    for table in paper_tables(records):
        parts += [f"## {table.title}", markdown_table(table.header, table.rows, left=2)]
        parts += [" ".join(verdict(table))]
    if any(record.smoke for record in records):
        parts.append(SMOKE_NOTE)
    return "\n\n".join(parts) + "\n"
