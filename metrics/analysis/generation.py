"""Compare the generation of two models: the conditions that they must share, and the ratio of each figure.

Figures are compared at every combination of prompt, batch and new tokens that was measured for both. The requests of
one measurement do not contain the noise between measurements. So a verdict needs repeats of both models, as it does for
training.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.grouped import grouped
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.formulas.ratio import Ratio, Side, holm, make_ratio
from efficientbench.metrics.records.figure import average
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
    "quantization": lambda record: record.quantization,
    "weights": lambda record: "random" if record.weights == "random" else "a checkpoint's",
    "formulas": lambda record: record.formula_id,
}
OF_GENERATION = ("engine", "steps", "quantization", "weights")
"""Conditions that generation has and training does not."""


def load_generated(folder: Path, needed: bool = True, quantization: str = "none") -> list[GenerationRecord]:
    """Return the records of generation below the folder of a run or of its repeats, of one width of weights.

    Raises MetricsError if a record is damaged, or if there is none and `needed` is true.
    """
    found, damaged = load_generations(folder)
    if damaged:
        raise MetricsError("; ".join(damaged))
    records = [record for record in found if record.quantization == quantization]
    if needed and not records:
        of_width = "" if quantization == "none" else f" of weights {quantization}"
        raise MetricsError(
            f"{folder}: holds no {GENERATION_NAME}{of_width}: efficientbench generate {folder} --measure writes it"
        )
    return records


def common_combinations(sides: Sequence[Generating], despite: Collection[str] = ()) -> list[Combination]:
    """Return the combinations of prompt, batch and new tokens that were measured for both models.

    Args:
        sides: the two models, each with its training and its generation.
        despite: names of conditions that may differ: device, dtype, engine, steps, quantization, weights, formulas.

    Raises:
        MetricsError: the conditions differ beyond `despite`, the measured model is not the trained one, or the models
            have no combination in common.
    """
    generations = [made for _, made in sides]
    _check_conditions(generations, despite)
    for group, made in sides:
        if any(record.config.get("model") != group.first.config.get("model") for record in made):
            raise MetricsError(
                f"{group.name}: generation was measured of another model than was trained: measure it again by "
                "efficientbench generate FOLDER --measure"
            )
    return _common(generations)


def _check_conditions(generations: Sequence[Sequence[GenerationRecord]], despite: Collection[str]) -> None:
    """Raise MetricsError where the conditions of two models differ beyond `despite`."""
    for name, read in GENERATION_CONDITIONS.items():
        texts = list(dict.fromkeys(read(record) for made in generations for record in made))
        if len(texts) > 1 and name not in despite:
            raise MetricsError(
                f"generation was measured under different conditions: {name}: {' against '.join(texts)}. To compare "
                f"all the same: --despite {name}"
            )


def _common(generations: Sequence[Sequence[GenerationRecord]]) -> list[Combination]:
    """Return the combinations that were measured for both models. Raises MetricsError: there are none."""
    measured = [by_combination(made).keys() for made in generations]
    common = sorted(measured[0] & measured[1])
    if not common:
        listed = " against ".join(", ".join(map(text_of, sorted(each))) or "none" for each in measured)
        raise MetricsError(f"no combination of prompt, batch and new tokens was measured of both: {listed}")
    return common


def measured_rows(made: Sequence[GenerationRecord]) -> list[GenerationRow]:
    """Return the rows of all records, without failed ones."""
    return [row for record in made for row in record.rows if row.failure is None]


def by_combination(made: Sequence[GenerationRecord]) -> dict[Combination, list[GenerationRow]]:
    """Return the rows of all records by their combination, without failed ones."""
    return grouped((combination_of(row), row) for row in measured_rows(made))


def mean_of(rows: Sequence[GenerationRow], name: str) -> float | None:
    """Return a figure's mean over the repeats' rows; None where one of them lacks it."""
    values = [row.value(name) for row in rows]
    return None if None in values else average(values)


def combination_of(row: GenerationRow) -> Combination:
    """Return a row's combination, which distinguishes it from the other rows of its record."""
    return row.prompt_tokens, row.batch, row.max_new_tokens


def text_of(combination: Combination) -> str:
    """Return a combination in words."""
    return "prompt {:,}, batch {:,}, new {:,}".format(*combination)


COMPARED = (
    *("ttft_s_p50", "prefill_tokens_per_s", "decode_time_s"),
    *("prefill_energy_j_per_token", "decode_energy_j_per_token"),
)
"""The figures that are compared, by their names in GENERATION_FIGURES."""


@dataclass(frozen=True)
class Compared:
    """The comparison of both models at one combination of prompt, batch and new tokens."""

    combination: Combination
    ratios: tuple[Ratio, ...]
    """The figures' ratios, second model over first."""
    cache_bytes: tuple[int | None, int | None]
    """Size of one sequence's cache for both models; counted, so without noise."""
    missing: dict[str, str]
    """Figure without a ratio → the reason."""


def compare_generation(sides: Sequence[Generating], despite: Collection[str] = ()) -> list[Compared]:
    """Return the ratios at every combination measured for both models, with p values corrected for all of them.

    Arguments and errors are those of `common_combinations`.
    """
    combinations = common_combinations(sides, despite)
    return _judged([made for _, made in sides], combinations)


def compare_widths(full: Sequence[GenerationRecord], quantized: Sequence[GenerationRecord]) -> list[Compared]:
    """Return the same of one model's quantized weights over its full width.

    Raises MetricsError: the conditions differ in more than the width, or there is no combination in common.
    """
    _check_conditions((full, quantized), ("quantization",))
    return _judged((full, quantized), _common((full, quantized)))


def _judged(generations: Sequence[Sequence[GenerationRecord]], combinations: Sequence[Combination]) -> list[Compared]:
    """Return the ratios at these combinations, with p values corrected for all of them."""
    found = [_compared(generations, combination) for combination in combinations]
    p_values = {
        f"{place} {ratio.metric}": ratio.p_value
        for place, each in enumerate(found)
        for ratio in each.ratios
        if ratio.p_value is not None
    }
    adjusted = holm(p_values, {})
    return [
        replace(each, ratios=tuple(replace(r, p_value=adjusted.get(f"{place} {r.metric}")) for r in each.ratios))
        for place, each in enumerate(found)
    ]


def _compared(generations: Sequence[Sequence[GenerationRecord]], combination: Combination) -> Compared:
    first, second = (by_combination(made)[combination] for made in generations)
    ratios: list[Ratio] = []
    missing: dict[str, str] = {}
    for name in COMPARED:
        why = _why_not(name, [*first, *second])
        if why is not None:
            missing[name] = why
            continue
        one, other = (Side.of([float(row.value(name)) for row in rows]) for rows in (first, second))
        ratios.append(make_ratio(name, one, other))
    return Compared(combination, tuple(ratios), (first[0].cache_bytes, second[0].cache_bytes), missing)


def _why_not(name: str, rows: Sequence[GenerationRow]) -> str | None:
    """Return why a figure has no ratio; None where it has one."""
    lacking = next((row for row in rows if not row.value(name)), None)
    if lacking is not None:
        return lacking.why(name) or "it is 0"
    if "energy" not in name:
        return None
    phase = name.partition("_")[0]
    scopes = list(dict.fromkeys(row.value(f"{phase}_energy_scope") for row in rows))
    if len(scopes) > 1:
        return f"energy is of different parts of the machine: {' against '.join(map(str, scopes))}"
    return next((row.phases[phase].energy_doubt for row in rows if row.phases[phase].energy_doubt), None)
