"""Prepare a fine-tuning before a device is used: tokenize the examples, and decide order and steps."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.finetuning.base_model import load_tokenizer
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.curriculum.choice import RunOrder, choose_order
from efficientbench.finetuning.curriculum.config import CurriculumConfig
from efficientbench.finetuning.curriculum.difficulty import (
    Sample,
    level_of,
    levels_between,
    number_of,
    reasoning_steps,
)
from efficientbench.finetuning.curriculum.order import run_steps
from efficientbench.finetuning.examples.examples import Examples, fingerprint_of, tokenized
from efficientbench.finetuning.examples.rows import Row, read_rows
from efficientbench.metrics.records.record_parts import DataSource

Scored = tuple[Sequence[Row], Sequence[float] | None]
"""Rows, and each row's score if the difficulty is computed, else None."""


@dataclass(frozen=True)
class Prepared:
    """The examples, order and steps of a run."""

    tokenizer: Any
    train: Examples
    held_out: Examples
    held_out_levels: np.ndarray
    """Each held-out example's level, int64 [examples]; -1: none."""
    order: RunOrder
    steps: int
    warmup: int
    data: DataSource
    held_out_too_long: int
    """The number of held-out examples that were truncated or dropped as too long."""
    unusable: dict[str, int]
    """The number of rows that were left out as unusable, by reason; of training and held-out rows together."""

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of examples and order."""
        return fingerprint_of(self.train, self.held_out, self.order.order)


def prepare(config: FinetuneConfig, model: str) -> Prepared:
    """Read and tokenize the examples, hold some out, and decide order and steps.

    Args:
        config: the run's configuration.
        model: the folder or hub id of the base model.

    Raises:
        ConfigError: warm-up or curriculum do not fit the examples.
        DataError: the examples cannot be read or used.
    """
    tokenizer = load_tokenizer(model)
    unusable: Counter[str] | None = Counter() if config.data.unusable == "drop" else None
    rows, held_rows = _split(config, unusable)
    train, kept, too_long = tokenized(rows, tokenizer, config.data, unusable)
    held_out, held_kept, held_out_too_long = tokenized(held_rows, tokenizer, config.data, unusable)
    rows, held_rows = [rows[number] for number in kept], [held_rows[number] for number in held_kept]
    batch = config.training.global_batch_size
    steps = config.training.steps or run_steps(len(train), config.training.epochs, batch)
    warmup = config.warmup(steps)
    samples = [Sample(row.difficulty, row.place) for row in rows]
    numbers = _numbers(config, train, rows)
    order = choose_order(config.curriculum, samples, steps, batch, numbers)
    held_numbers = _numbers(config, held_out, held_rows)
    levels = held_out_levels(config.curriculum, order, (rows, numbers), (held_rows, held_numbers))
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
    left_out = dict(unusable or {})
    return Prepared(tokenizer, train, held_out, levels, order, steps, warmup, data, held_out_too_long, left_out)


def _split(config: FinetuneConfig, unusable: Counter[str] | None) -> tuple[list[Row], list[Row]]:
    """Return the training rows and the held-out rows."""
    field, levels = config.curriculum.field, config.curriculum.levels
    rows = read_rows(config.data.path, field, levels, unusable)
    if config.data.validation is not None:
        return rows, read_rows(config.data.validation, field, levels, unusable)[: config.data.validation_examples]
    if len(rows) < 2:
        raise DataError(f"{config.data.path}: one example is too few to hold one out: name data.validation")
    count = min(max(1, round(config.data.validation_share * len(rows))), config.data.validation_examples, len(rows) - 1)
    drawn = set(np.random.default_rng(config.data.validation_seed).permutation(len(rows))[:count].tolist())
    kept = [row for number, row in enumerate(rows) if number not in drawn]
    return kept, [row for number, row in enumerate(rows) if number in drawn]


def _numbers(config: FinetuneConfig, train: Examples, rows: Sequence[Row]) -> list[float] | None:
    """Return each example's score; None if the score is its label."""
    score = config.curriculum.score
    if score == "loss" and config.curriculum.use != "off":
        raise ConfigError(
            "curriculum.score=loss: the base model's losses are a column that score=label reads: "
            "`efficientbench finetune losses` writes it"
        )
    if score == "length":
        return [float(count) for count in train.supervised]
    if score == "steps":
        return [float(reasoning_steps(row.messages[-1]["content"])) for row in rows]
    return None


def held_out_levels(config: CurriculumConfig, order: RunOrder, train: Scored, held_out: Scored) -> np.ndarray:
    """Return the level of each held-out example, int64; -1: none. Scores are cut at the bounds of the training's."""
    (rows, numbers), (held_rows, held_numbers) = train, held_out
    if config.score == "label":
        found = [number_of(row.difficulty) for row in rows]
        if None in found or all(level_of(config, row.difficulty) is not None for row in rows):
            named = [level_of(config, row.difficulty) for row in held_rows]
            return np.array([-1 if level is None else level for level in named], np.int64)
        numbers = [number for number in found if number is not None]
        held_numbers = [math.nan if (number := number_of(row.difficulty)) is None else number for row in held_rows]
    if numbers is None or held_numbers is None:
        return np.full(len(held_rows), -1, np.int64)
    rated = [(score, level) for score, level in zip(numbers, order.levels, strict=True) if level is not None]
    return levels_between(held_numbers, rated)
