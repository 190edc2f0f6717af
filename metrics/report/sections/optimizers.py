"""Optimizers side by side: each at the learning rate of its lowest loss, with its costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from efficientbench.metrics.analysis.conditions import CONDITIONS
from efficientbench.metrics.analysis.repeats import dotted
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.headline import HEADLINE, with_names
from efficientbench.metrics.report.table import ABSENT, Table

BASELINE = "adamw"
"""The optimizer that others are compared with, where it is among them."""
_RATES = tuple(f"{name}learning_rate" for name in ("", "min_", "matrix_", "embedding_", "head_"))
_OWN = (
    *("label", "output", "wandb", "prometheus", "data.cache", "parallel.distributed_optimizer"),
    "training.global_batch_tokens",
    *(f"training.{name}" for name in ("seed", "optimizer", *_RATES, "weight_decay", "beta1", "beta2", "epsilon")),
)
"""Keys in which runs of several optimizers may differ and still be of one model, text and length."""
_RATIOS = ("energy_j_per_token", "tokens_per_s", "amu_gb")
"""Figures that the table shows beside the loss."""
_NOTE = (
    "Of each optimizer the run with the lowest validation loss among those of one model, text and length; in brackets "
    "against the first row of the model. No verdicts: `efficientbench compare A B --despite optimizer,layout` has them."
)

Named = tuple[str, RunRecord]


def optimizers_table(records: Sequence[RunRecord]) -> Table:
    """Return a row for each optimizer of a model that several optimizers trained alike."""
    sets: dict[str, dict[str, list[Named]]] = {}
    for name, record in with_names(records):
        if record.status == "completed" and not record.finetuning:
            by_optimizer = sets.setdefault(_alike(record), {})
            by_optimizer.setdefault(CONDITIONS["optimizer"](record), []).append((name, record))
    rows = [row for by_optimizer in sets.values() if len(by_optimizer) > 1 for row in _rows(by_optimizer)]
    titles = (HEADLINE[figure].title for figure in ("validation_loss", *_RATIOS))
    return Table(("run", "optimizer", "learning rate", *titles), rows, (0, 1, 2), notes=(_NOTE,))


def _alike(record: RunRecord) -> str:
    """Return a text that is the same for runs that differ only in the optimizer and its settings."""
    config = sorted((key, value) for key, value in dotted(record.config).items() if key not in _OWN)
    named = [read(record) for name, read in CONDITIONS.items() if name not in ("optimizer", "layout")]
    layout = record.tp, record.pp, record.dp, record.ep, record.cp, record.micro_batch_size
    return repr(([each for each in config if each[1] is not None], named, layout))


def _rows(by_optimizer: Mapping[str, Sequence[Named]]) -> list[tuple[str, ...]]:
    """Return the rows of a model, AdamW's first."""
    order = sorted(by_optimizer, key=lambda optimizer: (optimizer != BASELINE, optimizer))
    best = {optimizer: _best(by_optimizer[optimizer]) for optimizer in order}
    first = best[order[0]][1]
    return [
        (name, optimizer, _rate(record, [each for _, each in by_optimizer[optimizer]]), *_figures(record, first))
        for optimizer, (name, record) in best.items()
    ]


def _best(members: Sequence[Named]) -> Named:
    judged = [member for member in members if _loss(member[1]) is not None]
    return min(judged, key=lambda member: _loss(member[1]) or 0.0) if judged else members[0]


def _loss(record: RunRecord) -> float | None:
    """Return the loss that learning rates are judged by; None where it is absent, or the run is speed only."""
    return None if record.speed_only_reason else record.validation_loss


def _rate(record: RunRecord, tried: Sequence[RunRecord]) -> str:
    """Return the matrices' learning rate, of how many it is the best, and whether it is an end of the tried range."""
    rates = [each for each in map(_matrix_rate, tried) if each is not None]
    own = _matrix_rate(record)
    if own is None:
        return ABSENT
    if len(tried) == 1:
        return f"{own:g}, the only one tried"
    if _loss(record) is None:
        return f"{own:g}, of {len(tried)}: no loss to choose the best by"
    ends = {min(rates): ", the lowest tried", max(rates): ", the highest tried"}
    return f"{own:g}, best of {len(tried)}{ends.get(own, '') if min(rates) < max(rates) else ''}"


def _matrix_rate(record: RunRecord) -> float | None:
    """Return the peak learning rate of the layers' matrices; None where the record does not have it."""
    return next((group.learning_rate for group in record.parameter_groups if group.role == "matrices"), None)


def _figures(record: RunRecord, first: RunRecord) -> list[str]:
    """Return the cells of a row, compared with the model's first row except in that row itself."""
    cells = [_figure(record, "validation_loss")]
    if record is not first and None not in (record.validation_loss, first.validation_loss):
        cells[0] += f" ({(record.validation_loss or 0.0) - (first.validation_loss or 0.0):+.3f})"
    for figure in _RATIOS:
        value, base = getattr(record, figure), getattr(first, figure)
        against = f" (×{value / base:.3g})" if record is not first and value is not None and base else ""
        cells.append(_figure(record, figure) + against)
    return cells


def _figure(record: RunRecord, name: str) -> str:
    value = getattr(record, name)
    return ABSENT if value is None else HEADLINE[name].text(value)
