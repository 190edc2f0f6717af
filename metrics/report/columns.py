"""Writes `report.csv`, one row a run at full precision, and derives further columns from a record's figures.

The glossary of report.html and the page docs/columns.md come from the same rows.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.variant import UndeclaredError
from efficientbench.metrics.records.figure import Figure
from efficientbench.metrics.records.record import FIGURES, NOT_RECORDED, RunRecord
from efficientbench.metrics.report.table import ABSENT

UNAVAILABLE = "unavailable"
WHICH = ("run", "variant", "size", "smoke", "speed_only", "seed", "repeats", "status")
"""Columns that say which run a row is of, and what a reader must know of it, whichever others are chosen."""


@dataclass(frozen=True)
class Derived:
    """A column that follows from a record's figures."""

    about: Figure
    formula: Callable[[RunRecord], Any]
    needs: str = ""
    """The figure whose reason explains an n/a of this column."""


# fmt: off
DERIVED = {
    "model": Derived(Figure("", "`<variant>_<size>`", known_as="nanotron model; llm-foundry Model"),
        lambda record: record.backbone),
    "gradient_accumulation_steps": Derived(Figure("", "global_batch_size / (micro_batch_size · dp)",
        known_as="nanotron batch_accumulation_per_replica; GradAccum"),
        lambda record: record.global_batch_size // (record.micro_batch_size * record.dp)),
    "global_batch_size_tokens": Derived(Figure("tokens", "global_batch_size · seq_len",
        known_as="llm-foundry GlobalBatchSize (T)"), lambda record: record.global_batch_size * record.seq_len),
    "recompute": Derived(Figure("", "activation recomputation", known_as="llm-foundry Activation Checkpointing"),
        lambda record: record.section("training").get("recompute")),
    "elapsed_time_per_iteration_ms": Derived(Figure("ms", "AL in ms", better="lower",
        known_as="nanotron elapsed_time_per_iteration_ms; Megatron elapsed time per iteration (ms)"),
        lambda record: _times(record.al_s, 1e3), needs="al_s"),
    "samples_per_s": Derived(Figure("sequences/s", "tokens_per_s / seq_len", better="higher",
        known_as="llm-foundry Throughput (S/s)"),
        # The examples of a fine-tuning have different lengths.
        lambda record: record.examples_per_s or _times(record.tokens_per_s, 1 / record.seq_len), needs="tokens_per_s"),
    "model_tflops_per_device": Derived(Figure("TFLOP/s", "flops_per_token · tokens_per_s_per_device",
        known_as="nanotron model_tflops_per_gpu; Megatron TFLOP/s/GPU", better="higher"),
        lambda record: _times(record.tokens_per_s_per_device, record.flops_per_token and record.flops_per_token / 1e12),
        needs="tokens_per_s_per_device"),
    "hardware_tflops_per_device": Derived(Figure("TFLOP/s", "hfu · peak_flops", better="higher",
        known_as="nanotron hardware_tflops_per_gpu"),
        lambda record: _times(record.hfu, record.peak_flops, 1e-12), needs="hfu"),
    "repeat_std": Derived(Figure("",
        "'name: standard deviation over the repeats' of each figure, joined by ' | '"),
        lambda record: " | ".join(f"{name}: {std!r}" for name, std in record.repeat_std.items())),
    "micro_batch_size_asked": Derived(Figure("sequences",
        "another than the one used where memory did not suffice for it"), lambda record: record.micro_batch_size_asked),
    "validation_loss_se_values": Derived(Figure("",
        "documents, or repeats, of validation_loss_se, whose interval is Student's"),
        lambda record: record.validation_loss_se_values, needs="validation_loss_se"),
    "kv_cache_bytes_per_token": Derived(Figure("B/token", "what decoding keeps of a token over all layers, in dtype",
        better="lower"),
        lambda record: _by_layers(record, lambda view, size: view.attention_variant.costs.cached(view) * size)),
    "state_bytes_32k": Derived(Figure("B", "what decoding keeps of 32,768 tokens over all layers, in dtype",
        better="lower"), lambda record: state_bytes(record, 32_768)),
    "layer_kinds": Derived(Figure("", "layers by kind, like 21 swa, 7 own; empty where they are alike"),
        lambda record: told_kinds(record) or ""),
    "speed_only": Derived(Figure("", "why the losses take no part in comparisons; empty where they do"),
        lambda record: record.speed_only_reason or ""),
}
"""Derived columns, which other projects' tables have, or which explain the record's figures."""
# fmt: on

COLUMNS: dict[str, Figure] = {
    **FIGURES,
    **{name: column.about for name, column in DERIVED.items()},
    UNAVAILABLE: Figure("", "for each n/a of the row 'name: reason', joined by ' | '"),
}
"""Every column, in the order of the file → its description."""


def row(record: RunRecord) -> tuple[dict[str, Any], dict[str, str]]:
    """Return all figures of a run by column, and the reason for each that is None."""
    values = {name: getattr(record, name) for name in FIGURES}
    values |= {name: column.formula(record) for name, column in DERIVED.items()}
    reasons = dict(record.unavailable)
    for name, value in values.items():
        if value is None and not reasons.get(name):
            needed = DERIVED[name].needs if name in DERIVED else ""
            reasons[name] = reasons.get(needed, NOT_RECORDED)
    return values, reasons


def _by_layers(record: RunRecord, count: Callable[[ModelConfig, int], int]) -> int | None:
    """Return the sum over layers by the record's configuration; None for a model that this project does not know.

    `count`: gets the view of a layer's kind, and the bytes of an element.
    """
    try:
        model = ModelConfig.model_validate(record.section("model"))
        size = DTYPE_BYTES[record.dtype or ""]
        return sum(layers * count(view, size) for view, layers in model.counted_views)
    except (ValidationError, UndeclaredError, KeyError):
        return None


def state_bytes(record: RunRecord, tokens: int) -> int | None:
    """Return what decoding keeps of a sequence of so many tokens; None as `_by_layers`."""
    return _by_layers(record, lambda view, size: view.attention_variant.costs.state_bytes(view, tokens, 1, size))


def told_kinds(record: RunRecord) -> str | None:
    """Return how many layers of a run are of each kind; None where they are alike, or the model is not known."""
    try:
        return ModelConfig.model_validate(record.section("model")).told_kinds
    except ValidationError:
        return None


def _times(*factors: float | None) -> float | None:
    return None if None in factors else math.prod(factor for factor in factors if factor is not None)


def runs_csv(records: Iterable[RunRecord], columns: Sequence[str] = ()) -> str:
    """Return one row a run, at full precision. `columns`: those to show beside WHICH; empty: all."""
    shown = list(dict.fromkeys((*WHICH, *columns, UNAVAILABLE))) if columns else list(COLUMNS)
    found = (
        (values, {name: reason for name, reason in reasons.items() if not columns or name in columns})
        for values, reasons in map(row, records)
    )
    return csv_text(shown, (values | {UNAVAILABLE: joined(reasons)} for values, reasons in found))


def joined(reasons: Mapping[str, str]) -> str:
    """Return the cell that says why figures are n/a."""
    return " | ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items()))


def csv_text(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a header and these rows as the text of a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = list(columns)
    writer.writerow(names)
    writer.writerows([csv_cell(each[name]) for name in names] for each in rows)
    return text.getvalue()


def csv_cell(value: Any) -> str:
    """Return a figure as a cell of a CSV file, at full precision."""
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # A spreadsheet evaluates a text that begins like a formula, and a stranger's formula may send the table away.
        return f"'{value}" if value.startswith(_FORMULA) else value
    return repr(value) if isinstance(value, float) else str(value)


_FORMULA = ("=", "+", "-", "@", "\t", "\n", "\r")
