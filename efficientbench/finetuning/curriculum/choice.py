"""Choose a run's order: the configured curriculum, or a random order and the reason for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from efficientbench.basics.errors import ConfigError
from efficientbench.finetuning.curriculum.config import CurriculumConfig, Stage
from efficientbench.finetuning.curriculum.difficulty import Difficulties, Sample, difficulties
from efficientbench.finetuning.curriculum.order import (
    Seen,
    competence_order,
    order_hash,
    permuted,
    random_order,
    reversed_steps,
    seen,
    shuffled,
    sorted_order,
    stage_steps,
    staged_order,
)

FEWEST_STEPS = 10
"""The fewest steps of a run with a curriculum; a shorter run cannot show its effect."""
FEWEST_STAGE_STEPS = 3
ADVISED_SAMPLES = 1000
"""The fewest samples of a level without a warning."""


@dataclass(frozen=True)
class StageRecord:
    """A stage of the run."""

    steps: int
    asked: tuple[float, ...]
    """Each level's share in the configuration."""
    used: tuple[float, ...]
    """Each level's share in the run, 0 for an empty level."""


@dataclass(frozen=True)
class LevelRecord:
    """A level and how often the run drew its samples."""

    name: str
    samples: int
    drawn: int
    passes: float
    """`drawn` over `samples`; 0 for an empty level."""
    coverage: float
    """The share of the level's samples that were drawn at least once; 0 for an empty level."""


@dataclass(frozen=True)
class CurriculumRecord:
    """The order's part of a run's record."""

    asked: str
    """The configured `curriculum.use`."""
    used: str
    """The pace of the curriculum, or the baseline's name; random: no curriculum."""
    reason: str | None
    """Why there is no curriculum; None if the configured order was used."""
    score: str
    pace: str
    seed: int
    steps: int
    batch: int
    samples: int
    """The number of samples that take part."""
    coverage: float
    """The share of these samples that the order draws at least once."""
    stages: tuple[StageRecord, ...]
    """The stages of a staged pace; empty for other orders."""
    levels: tuple[LevelRecord, ...]
    """The levels; empty if samples have no difficulty."""
    order_hash: str
    """The order's SHA-256, equal on all ranks."""


@dataclass(frozen=True)
class RunOrder:
    """The order of a run, with its record and warnings."""

    order: np.ndarray
    """The numbers of the samples, int64 [steps · batch]."""
    record: CurriculumRecord
    warnings: tuple[str, ...]
    levels: tuple[int | None, ...]
    """Each sample's level; None for a sample without one."""


def choose_order(
    config: CurriculumConfig,
    samples: Sequence[Sample],
    steps: int,
    batch: int,
    numbers: Sequence[float] | None = None,
) -> RunOrder:
    """Return the order of a run of `steps` steps with `batch` samples each.

    A fallback changes neither the number of steps nor the schedule, so that runs stay comparable.

    Args:
        config: the configured curriculum.
        samples: the training samples, without those that were dropped as too long.
        steps: optimizer steps.
        batch: samples per step over all ranks.
        numbers: each sample's score; None with the score `label`.

    Raises:
        ConfigError: some rows lack a label, or a curriculum is required but impossible.
    """
    if config.use == "off":
        return _random(config, len(samples), None, steps, batch, "curriculum.use=off")
    rated = difficulties(config, samples, numbers)
    reason = _obstacle(config, len(samples), rated, steps)
    if rated is None or reason is not None:
        if config.use == "required":
            raise ConfigError(f"curriculum.use=required: {reason}")
        return _random(config, len(samples), rated, steps, batch, str(reason))
    empty = [name for level, name in enumerate(config.levels) if level not in rated.levels]
    if config.use == "required" and empty:
        raise ConfigError(f"curriculum.use=required: no sample has the level {', '.join(empty)}")
    return _paced(config, rated, steps, batch)


def _obstacle(config: CurriculumConfig, samples: int, rated: Difficulties | None, steps: int) -> str | None:
    """Return why the data or the run's length allows no curriculum; None if it is possible."""
    if rated is None:
        return f"'{config.field}' field not found in any of {samples:,} rows"
    if len({score for score in rated.scores if score is not None}) < 2:
        return "all samples are of one difficulty"
    if steps < FEWEST_STEPS:
        return f"{steps} steps are fewer than {FEWEST_STEPS}"
    shortest = min(stage_steps(steps, config.stages))
    if config.pace == "staged" and shortest < FEWEST_STAGE_STEPS:
        return f"a stage of {shortest} of the {steps} steps is shorter than {FEWEST_STAGE_STEPS}"
    return None


def _random(
    config: CurriculumConfig, samples: int, rated: Difficulties | None, steps: int, batch: int, reason: str
) -> RunOrder:
    """Return shuffled passes over the samples that take part, with a warning unless the curriculum is off."""
    kept = np.arange(samples) if rated is None else rated.kept
    levels = (None,) * samples if rated is None else rated.levels
    order = random_order(kept, steps, batch, config.seed)
    warnings = () if config.use == "off" else (f"curriculum: {reason}; standard training in random order",)
    return RunOrder(order, _record(config, order, kept, levels, (), batch, reason), warnings, levels)


def _paced(config: CurriculumConfig, rated: Difficulties, steps: int, batch: int) -> RunOrder:
    """Return the curriculum, or the baseline that `config.order` names."""
    kept = rated.kept
    stages = _stages_with_samples(config, rated)
    order = kept[_order_among(config, rated, stages, steps, batch)]
    stage_records: tuple[StageRecord, ...] = ()
    if config.pace == "staged" and config.order != "random":
        lengths = stage_steps(steps, stages)
        stage_records = tuple(
            StageRecord(length, asked.mixture, used.mixture)
            for length, asked, used in zip(lengths, config.stages, stages, strict=True)
        )
    record = _record(config, order, kept, rated.levels, stage_records, batch, None)
    return RunOrder(order, record, tuple(_warnings(record)), rated.levels)


def _order_among(
    config: CurriculumConfig, rated: Difficulties, stages: Sequence[Stage], steps: int, batch: int
) -> np.ndarray:
    """Return the order as indices into the samples that take part."""
    scores = [score for score in rated.scores if score is not None]
    levels = [level for level in rated.levels if level is not None]
    if config.order == "random":
        return random_order(range(len(scores)), steps, batch, config.seed)
    if config.order == "random_levels":
        scores, levels = permuted(scores, config.seed), permuted(levels, config.seed)
    if config.pace == "staged":
        order = staged_order(levels, steps, batch, config.seed, stages)
    elif config.pace == "competence":
        order = competence_order(scores, steps, batch, config.seed, config.start)
    else:
        order = sorted_order(scores, steps, batch, config.seed)
    if config.order == "shuffled":
        return shuffled(order, config.seed)
    return reversed_steps(order, batch) if config.order == "reversed" else order


def _stages_with_samples(config: CurriculumConfig, rated: Difficulties) -> tuple[Stage, ...]:
    """Return the stages, with the shares of empty levels distributed over the other levels in proportion.

    If a stage has no other level, the levels get shares in proportion to their numbers of samples.
    """
    sizes = [rated.levels.count(level) for level in range(len(config.levels))]
    stages = []
    for stage in config.stages:
        shares = [share if size else 0.0 for share, size in zip(stage.mixture, sizes, strict=True)]
        shares = shares if any(shares) else [float(size) for size in sizes]
        # A mixture without an empty level is kept: dividing by a sum of 1 − 1e-17 would change its digits.
        full = all(size or not share for share, size in zip(stage.mixture, sizes, strict=True))
        mixture = stage.mixture if full else tuple(share / sum(shares) for share in shares)
        stages.append(Stage(end=stage.end, mixture=mixture))
    return tuple(stages)


def _warnings(record: CurriculumRecord) -> list[str]:
    lines = []
    for level in record.levels:
        if not level.samples:
            lines.append(f"curriculum: no sample has the level '{level.name}': its share goes to the others")
        elif level.samples < ADVISED_SAMPLES:
            lines.append(
                f"curriculum: level '{level.name}' has {level.samples:,} samples, each drawn {level.passes:.1f} times: "
                f"at least {ADVISED_SAMPLES:,} are advised"
            )
    if record.coverage < 1:
        lines.append(f"curriculum: {1 - record.coverage:.1%} of {record.samples:,} samples are never drawn")
    return lines


def _record(
    config: CurriculumConfig,
    order: np.ndarray,
    kept: np.ndarray,
    levels: Sequence[int | None],
    stages: tuple[StageRecord, ...],
    batch: int,
    reason: str | None,
) -> CurriculumRecord:
    own = np.array([-1 if level is None else level for level in levels], np.int64)
    used = config.pace if config.order == "paced" else config.order
    rated = bool((own >= 0).any())
    return CurriculumRecord(
        asked=config.use,
        used=used if reason is None else "random",
        reason=reason,
        score=config.score,
        pace=config.pace,
        seed=config.seed,
        steps=order.size // batch,
        batch=batch,
        samples=kept.size,
        coverage=seen(order, kept).coverage,
        stages=stages,
        levels=tuple(
            _level_record(name, order, np.flatnonzero(own == level)) for level, name in enumerate(config.levels)
        )
        if rated
        else (),
        order_hash=order_hash(order),
    )


def _level_record(name: str, order: np.ndarray, members: np.ndarray) -> LevelRecord:
    counted = seen(order, members) if members.size else Seen(1, 0, 0.0)
    return LevelRecord(name, members.size, counted.drawn, counted.passes, counted.coverage)
