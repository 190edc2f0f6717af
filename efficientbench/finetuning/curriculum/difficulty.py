"""The difficulty of samples: by label, or by a score that is cut into levels of equal size."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from efficientbench.basics.errors import ConfigError, nearest
from efficientbench.finetuning.curriculum.config import CurriculumConfig

_CALCULATION = re.compile(r"<<[^<>]*>>")
_SHOWN_WORDS = 5


@dataclass(frozen=True)
class Sample:
    """The facts about a training sample that a curriculum needs."""

    difficulty: object
    """The value of the label's column, as in the file; None if the row has none."""
    place: str
    """The row's file and line, for error messages."""


@dataclass(frozen=True)
class Difficulties:
    """The difficulties of all samples."""

    scores: tuple[float | None, ...]
    """Each sample's score, higher is harder; None: the sample takes no part."""
    levels: tuple[int | None, ...]
    """Each sample's level, from 0, the easiest; None if its score is None."""

    @property
    def kept(self) -> np.ndarray:
        """The numbers of the samples that take part, int64."""
        return np.array([number for number, level in enumerate(self.levels) if level is not None], np.int64)


def reasoning_steps(answer: str) -> int:
    """Count an answer's reasoning steps: its `<<…>>` calculations as in GSM8K, else its non-empty lines."""
    return len(_CALCULATION.findall(answer)) or sum(bool(line.strip()) for line in answer.splitlines())


def levels_of_scores(scores: Sequence[float], count: int) -> list[int]:
    """Return each score's level: `count` levels, as equal in size as possible; equal scores rank by their index."""
    ranked = np.argsort(np.asarray(scores, float), kind="stable")
    levels = np.empty(len(scores), np.int64)
    levels[ranked] = np.arange(len(scores)) * count // len(scores)
    return levels.tolist()


def levels_between(numbers: Sequence[float], rated: Sequence[tuple[float, int]]) -> np.ndarray:
    """Return the level of each number by the bounds of levels that other scores got, int64; -1: no level.

    Args:
        numbers: the numbers to rate; NaN has no level.
        rated: other scores and their levels.
    """
    if not rated:
        return np.full(len(numbers), -1, np.int64)
    highest: dict[int, float] = {}
    for score, level in rated:
        highest[level] = max(score, highest.get(level, score))
    present = np.array(sorted(highest), np.int64)
    given = np.asarray(numbers, float)
    ends = [highest[level] for level in present[:-1].tolist()]
    return np.where(np.isnan(given), -1, present[np.searchsorted(ends, given, side="left")])


def level_of(config: CurriculumConfig, label: object) -> int | None:
    """Return the level that a label names; None if it names none."""
    return config.levels.index(str(label)) if str(label) in config.levels else None


def difficulties(
    config: CurriculumConfig, samples: Sequence[Sample], numbers: Sequence[float] | None
) -> Difficulties | None:
    """Return the difficulty of each sample; None if the score is `label` and no sample has one.

    Args:
        config: the curriculum's score and levels.
        samples: the training samples.
        numbers: each sample's score; None with the score `label`.

    Raises:
        ConfigError: some labels are missing or name no level, and `unlabelled` is `error`; or a number is not finite.
    """
    if config.score != "label":
        assert numbers is not None, f"score {config.score} takes a number for each sample"
        return _by_number(config, samples, list(numbers))
    if all(sample.difficulty is None for sample in samples):
        return None
    levels = [level_of(config, sample.difficulty) for sample in samples]
    given = [number_of(sample.difficulty) for sample in samples]
    if None in levels and all(number is not None for number in given):
        return _by_number(config, samples, [number for number in given if number is not None])
    if None in levels and config.unlabelled == "error":
        raise ConfigError(_unlabelled(config, samples, levels))
    if config.unlabelled == "easiest":
        levels = [level or 0 for level in levels]
    return Difficulties(tuple(None if level is None else float(level) for level in levels), tuple(levels))


def _by_number(config: CurriculumConfig, samples: Sequence[Sample], numbers: Sequence[float]) -> Difficulties:
    for number, sample in zip(numbers, samples, strict=True):
        if not math.isfinite(number):
            raise ConfigError(f"{sample.place}: the difficulty by {config.score} is {number}, which ranks nowhere")
    return Difficulties(tuple(map(float, numbers)), tuple(levels_of_scores(numbers, len(config.levels))))


def number_of(label: object) -> float | None:
    """Return a label that is a number; None for any other label."""
    if isinstance(label, (int, float)) and not isinstance(label, bool):
        return float(label)
    return None


def _unlabelled(config: CurriculumConfig, samples: Sequence[Sample], levels: Sequence[int | None]) -> str:
    """Return the error message for samples without a known level: first place, count, labels, remedies."""
    lost = [sample for sample, level in zip(samples, levels, strict=True) if level is None]
    words = Counter(str(sample.difficulty) for sample in lost if sample.difficulty is not None)
    missing = sum(sample.difficulty is None for sample in lost)
    parts = [f"{missing:,} have no '{config.field}'"] if missing else []
    for word, count in words.most_common(_SHOWN_WORDS):
        near = nearest(word, config.levels)
        parts.append(f"{count:,} have '{word[:40]}'" + (f" (did you mean '{near}'?)" if near else ""))
    more = len(words) - _SHOWN_WORDS
    parts += [f"and {more:,} more words"] if more > 0 else []
    return (
        f"{lost[0].place}: {len(lost):,} of {len(samples):,} rows name none of the levels {', '.join(config.levels)}: "
        f"{', '.join(parts)}; correct them, or set curriculum.unlabelled to drop or easiest, or curriculum.levels to "
        "the names that the data has"
    )
