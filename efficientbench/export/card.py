"""Write the model card: what the weights are, and the measurements of the run that trained them."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import PurePath

from efficientbench.config.quantization import Quantization
from efficientbench.config.schema import RunConfig
from efficientbench.export.families import CLASSES, Architecture, has_products
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.headline import HEADLINE, cell
from efficientbench.metrics.report.table import ABSENT

FRONT_MATTER = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- efficientbench
---
"""

TRAINING_TEXT = (
    "Training put one end-of-document token after each document and no other special token; names of special tokens in "
    "the text were ordinary text."
)


def model_card(
    config: RunConfig,
    architecture: Architecture,
    step: int,
    steps: int,
    record: RunRecord | None,
    warnings: Sequence[str] = (),
    imported: str | None = None,
    quantization: Quantization | None = None,
) -> str:
    """Return the README.md of an exported model.

    Args:
        config: the run's configuration.
        architecture: the model's type in transformers.
        step: the step of the exported checkpoint.
        steps: the number of steps of the complete run.
        record: the run's record; None if it has none.
        warnings: notes on the exported files.
        imported: name and class of the model whose weights were imported; None if they were trained here.
        quantization: the form of the linear layers' weights in the files; None: they have the dtype of training.
    """
    smoke = (
        " (a smoke run: a scaled-down model, whose figures do not stand for the named one's)" if config.smoke else ""
    )
    facts = _facts(config, architecture, step, steps, record, imported)
    if quantization is not None:
        facts.insert(1, ("linear layers", f"{quantization.name}, packed; the figures below are of the full width"))
    lines = [
        f"# {_text(config.name)}",
        "",
        f"A language model that EfficientBench {'imported' if imported is not None else 'trained'}, as run "
        f"`{config.name}`{smoke}.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {_text(name)} | {_text(value)} |" for name, value in facts),
        "",
        *([TRAINING_TEXT, ""] if imported is None else []),
        *(f"Note: {_text(warning)}.\n" for warning in warnings),
    ]
    return FRONT_MATTER + "\n".join(lines)


def _facts(
    config: RunConfig, architecture: Architecture, step: int, steps: int, record: RunRecord | None, imported: str | None
) -> list[tuple[str, str]]:
    """Return the rows of the card's table: on training, on the files, and from the record if there is one."""
    training = config.training
    tokens_per_step = training.global_batch_size * training.seq_len
    facts = [
        ("class", CLASSES[architecture]),
        (
            ("imported from", imported)
            if imported is not None
            else ("trained for", f"{step:,} of {steps:,} steps, {step * tokens_per_step:,} tokens")
        ),
        ("sequence", f"{training.seq_len:,} tokens"),
        ("dtype of compute and of these weights", training.dtype),
        ("seed", str(training.seed)),
    ]
    if config.init.run is not None:
        # Only the last part of the path, as in `_data`.
        begun = "continued" if config.init.branches else "began with the weights of"
        facts.append((begun, f"{PurePath(config.init.run).name} after step {config.init.step}"))
    multiplier = config.model.embedding_multiplier
    if has_products(config.model, architecture):
        other = "the output's, which training tied" if config.model.tied else "that of training"
        facts.append(("embedding", f"the input's table is {multiplier:.6g} × {other}"))
    if imported is not None:
        facts.append(("record", f"{ABSENT}: nothing was trained or measured here"))
    elif record is None:
        facts.append(("record", f"{ABSENT}: the run has no record.json, which is written at its end"))
    else:
        facts += _recorded(record, step)
    return facts


def _recorded(record: RunRecord, step: int) -> list[tuple[str, str]]:
    loss = next((point.loss for point in record.quality_curve if point.step == step), None)
    layout = f"tp {record.tp}, cp {record.cp}, pp {record.pp}, ep {record.ep}, dp {record.dp}"
    facts = [
        ("validation loss of these weights, nats", f"{loss!r}" if loss is not None else _no_loss(record, step)),
        ("parameters", _parameters(record)),
        ("trained on", f"{record.devices} × {record.device_name} ({layout})"),
        ("data", _data(record)),
        ("status of the run", record.status),
        ("definitions of the figures", record.formula_id),
    ]
    for figure, column in list(HEADLINE.items())[1:]:
        reason = f": {record.unavailable[figure]}" if getattr(record, figure) is None else ""
        facts.append((f"whole run: {column.title}", cell(figure, record) + reason))
    return facts


def _parameters(record: RunRecord) -> str:
    if record.parameters is None:
        return f"{ABSENT}: {record.unavailable.get('parameters', 'the record does not say why')}"
    return f"{record.parameters:,} ({record.parameters_active:,} active)"


def _no_loss(record: RunRecord, step: int) -> str:
    validated: Sequence[int] = [point.step for point in record.quality_curve]
    at = f"after steps {', '.join(map(str, validated))}" if validated else "never"
    return f"{ABSENT}: the run validated {at}, not after step {step}"


def _data(record: RunRecord) -> str:
    # Only the last part of a path: the card is published, and the rest is about this machine.
    return "; ".join(
        f"{source.weight:.3g} {PurePath(source.source).name}, {source.documents:,} documents, {source.tokens:,} "
        f"tokens, SHA-256 {source.fingerprint}"
        for source in record.data or []
    )


def _text(value: str) -> str:
    """Escape a text so that it is plain text in a cell of a Markdown table."""
    printable = "".join(character if character.isprintable() else " " for character in value)
    return re.sub(r"([\\`*_\[\]|#~!])", r"\\\1", html.escape(printable, quote=False))
