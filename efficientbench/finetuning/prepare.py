"""Prepares a fine-tuning before a device is used: examples, their order, steps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from efficientbench.config.errors import ConfigError
from efficientbench.data_tools.errors import DataError
from efficientbench.finetuning.base_model import load_tokenizer
from efficientbench.finetuning.choice import RunOrder, choose_order
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.curriculum import run_steps
from efficientbench.finetuning.difficulty import Sample, level_of, reasoning_steps
from efficientbench.finetuning.examples import Examples, tokenized
from efficientbench.finetuning.rows import Row, read_rows
from efficientbench.metrics.records.record_parts import DataSource


@dataclass(frozen=True)
class Prepared:
    """All that is decided before the first step."""

    tokenizer: Any
    train: Examples
    held_out: Examples
    held_out_levels: np.ndarray
    """Level of each held-out example; -1: none."""
    order: RunOrder
    steps: int
    warmup: int
    data: DataSource

    @property
    def fingerprint(self) -> str:
        """SHA-256 of examples and order."""
        parts = (self.train.fingerprint, self.held_out.fingerprint, self.order.record.order_hash)
        return hashlib.sha256("".join(parts).encode()).hexdigest()


def prepare(config: FinetuneConfig, model: str, world: int) -> Prepared:
    """Read and tokenize the examples, hold some out, and decide the order.

    Args:
        config: the run.
        model: what transformers loads the base by.
        world: ranks of all nodes.

    Raises:
        ConfigError: batch, warm-up or curriculum cannot work.
        DataError: the examples cannot be used.
    """
    try:
        config.accumulation(world)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    tokenizer = load_tokenizer(model)
    rows, held_rows = _split(config)
    train, kept, too_long = tokenized(rows, tokenizer, config.data)
    held_out, held_kept, _ = tokenized(held_rows, tokenizer, config.data)
    batch = config.training.global_batch_size
    steps = config.training.steps or run_steps(len(train), config.training.epochs, batch)
    try:
        warmup = config.warmup(steps)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    samples = [Sample(rows[number].difficulty, rows[number].place) for number in kept]
    numbers = _numbers(config, train, [rows[number] for number in kept])
    order = choose_order(config.curriculum, samples, steps, batch, numbers)
    levels = [_level(config, held_rows[number]) for number in held_kept]
    text = tokenizer.backend_tokenizer.to_str() + tokenizer.chat_template
    data = DataSource(
        source=config.data.path or "Python's manual",
        weight=1.0,
        documents=len(train),
        tokens=int(train.lengths.sum()),
        fingerprint=train.fingerprint,
        tokenizer_fingerprint=hashlib.sha256(text.encode()).hexdigest(),
        too_long=too_long,
    )
    return Prepared(tokenizer, train, held_out, np.array(levels, np.int64), order, steps, warmup, data)


def _split(config: FinetuneConfig) -> tuple[list[Row], list[Row]]:
    """Return the rows to train on, and those that are held out."""
    field, levels = config.curriculum.field, config.curriculum.levels
    rows = read_rows(config.data.path, field, levels)
    if config.data.validation is not None:
        return rows, read_rows(config.data.validation, field, levels)[: config.data.validation_examples]
    if len(rows) < 2:
        raise DataError(f"{config.data.path}: one example is too few to hold one out: name data.validation")
    count = min(max(1, round(config.data.validation_share * len(rows))), config.data.validation_examples, len(rows) - 1)
    drawn = set(np.random.default_rng(config.data.validation_seed).permutation(len(rows))[:count].tolist())
    kept = [row for number, row in enumerate(rows) if number not in drawn]
    return kept, [row for number, row in enumerate(rows) if number in drawn]


def _numbers(config: FinetuneConfig, train: Examples, rows: Sequence[Row]) -> list[float] | None:
    """Return each example's score; None where it is a label."""
    score = config.curriculum.score
    if score == "loss" and config.curriculum.use != "off":
        raise ConfigError(
            "curriculum.score=loss: no losses of the base model are computed here: write them into a column, and name "
            "it by curriculum.field"
        )
    if score == "length":
        return [float(count) for count in train.supervised]
    if score == "steps":
        return [float(reasoning_steps(row.messages[-1]["content"])) for row in rows]
    return None


def _level(config: FinetuneConfig, row: Row) -> int:
    level = level_of(config.curriculum, row.difficulty) if config.curriculum.score == "label" else None
    return -1 if level is None else level
