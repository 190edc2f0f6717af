"""The two models of a comparison of generation: the conditions that they must share, and their common combinations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.records.generation.generation import (
    GENERATION_NAME,
    GenerationRecord,
    GenerationRow,
    load_generations,
)

Combination = tuple[int, int, int]
"""Prompt tokens, batch size, new tokens of each sequence."""
Generating = tuple[Group, Sequence[GenerationRecord]]
"""One model: the repeats of its training, and its records of generation."""

GENERATION_CONDITIONS: dict[str, Callable[[GenerationRecord], str]] = {
    "device": lambda record: f"{record.devices} × {record.device_name}",
    "dtype": lambda record: record.dtype,
    "engine": lambda record: record.engine,
    "steps": lambda record: record.steps,
    # The weights decide which experts get tokens, and which blocks NSA reads.
    "weights": lambda record: "random" if record.weights == "random" else "a checkpoint's",
    "formulas": lambda record: record.formula_id,
}
OF_GENERATION = ("engine", "steps", "weights")
"""Conditions that generation has and training does not."""


def load_generated(folder: Path, needed: bool = True) -> list[GenerationRecord]:
    """Return the records of generation below the folder of a run or of its repeats.

    Raises MetricsError if a record is damaged, or if there is none and `needed` is true.
    """
    records, damaged = load_generations(folder)
    if damaged:
        raise MetricsError("; ".join(damaged))
    if needed and not records:
        raise MetricsError(
            f"{folder}: holds no {GENERATION_NAME}: efficientbench generate {folder} --measure writes it"
        )
    return records


def common_combinations(sides: Sequence[Generating], despite: Collection[str] = ()) -> list[Combination]:
    """Return the combinations of prompt, batch and new tokens that were measured for both models.

    Args:
        sides: the two models, each with its training and its generation.
        despite: names of conditions that may differ: device, dtype, engine, steps, weights, formulas.

    Raises:
        MetricsError: the conditions differ beyond `despite`, the measured model is not the trained one, or the models
            have no combination in common.
    """
    generations = [made for _, made in sides]
    for name, read in GENERATION_CONDITIONS.items():
        texts = list(dict.fromkeys(read(record) for made in generations for record in made))
        if len(texts) > 1 and name not in despite:
            raise MetricsError(
                f"generation was measured under different conditions: {name}: {' against '.join(texts)}. To compare "
                f"all the same: --despite {name}"
            )
    for group, made in sides:
        if any(record.config.get("model") != group.first.config.get("model") for record in made):
            raise MetricsError(
                f"{group.name}: generation was measured of another model than was trained: measure it again by "
                "efficientbench generate FOLDER --measure"
            )
    measured = [{combination_of(row) for row in measured_rows(made)} for made in generations]
    common = sorted(measured[0] & measured[1])
    if not common:
        listed = " against ".join(", ".join(map(text_of, sorted(each))) or "none" for each in measured)
        raise MetricsError(f"no combination of prompt, batch and new tokens was measured of both: {listed}")
    return common


def measured_rows(made: Sequence[GenerationRecord]) -> list[GenerationRow]:
    """Return the rows of all records, without failed ones."""
    return [row for record in made for row in record.rows if row.failure is None]


def combination_of(row: GenerationRow) -> Combination:
    """Return a row's combination, which distinguishes it from the other rows of its record."""
    return row.prompt_tokens, row.batch, row.max_new_tokens


def text_of(combination: Combination) -> str:
    """Return a combination in words."""
    return "prompt {:,}, batch {:,}, new {:,}".format(*combination)
