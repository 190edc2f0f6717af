"""Decides whether two rows may be judged on a figure, and if not, why: for `compare`, `--fail-if` and reports alike.

A figure is not judged where it is in doubt, where a loss comes from other training, and where the sides did not run in
turns, so that a drift of the machine would count as a difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import product
from operator import attrgetter
from typing import Any

from efficientbench.metrics.analysis.cautions import KINDS
from efficientbench.metrics.analysis.conditions import KERNELS, differences, optimizer_of
from efficientbench.metrics.analysis.noise import aa_floor, pooled_spread, seed_noise, text_noise
from efficientbench.metrics.analysis.repeats import Group, dotted, model_identity
from efficientbench.metrics.formulas.ratio import Objection, Ratio, Side, make_ratio
from efficientbench.metrics.records.record import RunRecord

TOKENS = "tokens in the time"
TRAINING, TURNS = "training", "turns"
"""Names by which `compare --despite` lifts an objection."""
ORDER = ("al_s", "energy_j_per_token", "amu_gb", "validation_loss")
"""The figures that a comparison asks for, in this order: the first that can be judged has nearly the whole level."""
MOST_OFF = 1.5
"""Standard deviations by which the order of two sides may be off that of perfect turns."""

LOSSES = ("validation_loss", "bits_per_byte")
"""Figures that are not compared if a run is speed only."""
_QUALITY = (*LOSSES, "validation_loss_se", "perplexity", "train_loss", "auxiliary_loss", "expert_load_imbalance")
_LEARNED = (*_QUALITY, "tokens_to_loss", "time_to_loss_s", "energy_to_loss_j")
_UNTIMED = (
    *(*_QUALITY, "tokens_to_loss", "tokens_trained", "tokens_per_parameter", "unique_tokens", "epochs"),
    *("unigram_entropy", "supervised_tokens", "trainable_parameters", "padding_share", "amu_", "memory_", "peak_"),
)
"""Beginnings of figures that depend neither on the machine's speed nor on its power."""
_OF_ENERGY = ("aec_w", "power_w_sum", "tokens_per_j")
"""The meter's figures without `energy` in their names."""

_LEARNS = ("training.", "rl.", "curriculum.", "model.init_std", "model.moe.auxiliary_", "model.moe.bias_rate")
"""Beginnings of keys that change what is learned and are not the model's own."""
_ELSEWHERE = (
    *("seq_len", "micro_batch_size", "global_batch", "tokens", "steps", "epochs", "dtype", "recompute", "optimizer"),
    *("seed", "validat", "deterministic", "recheck_every", "draw_weights_on", "timeout_s"),
)
"""Beginnings of keys of `training` that a condition covers, or that change nothing of what is learned."""
_RATES = (
    "lr_",
    "learning_rate",
    "min_",
    "matrix_",
    "embedding_",
    "head_",
    "warmup_",
    "weight_decay",
    "beta",
    "epsilon",
)
"""Beginnings of keys of `training` that change losses, and neither time, memory nor energy."""


def training_of(record: RunRecord) -> dict[str, Any]:
    """Return the keys and values that change what is learned, and are neither the model's own nor a condition's."""
    elsewhere = ("curriculum.seed", *(f"training.{key}" for key in _ELSEWHERE))
    keys = dotted(record.config).items()
    return {key: value for key, value in keys if key.startswith(_LEARNS) and not key.startswith(elsewhere)}


def doubt(metric: str, records: Sequence[RunRecord]) -> str | None:
    """Return why a figure of these runs is in doubt, with both values of it; None where nothing speaks against it."""
    if "energy" not in metric and metric not in _OF_ENERGY:
        return None
    return next((f"{record.run}: {record.energy_doubt}" for record in records if record.energy_doubt), None)


@dataclass(frozen=True)
class Judge:
    """Compares figures of two rows, second over first; the p values are not corrected for the number of figures."""

    first: Group
    second: Group
    alike: Sequence[Sequence[RunRecord]] = ()
    """Sets of runs of identical models, which show the noise."""
    despite: Collection[str] = ()
    """Conditions that may differ; TRAINING and TURNS lift those objections."""
    names: tuple[str, str] = ("A", "B")
    """The rows' names in verdicts."""
    chosen: Collection[str] = ()
    """Keys of training of which each row has the best of a grid: they are no other training."""
    choices: int = 1
    """Pairs of rows from which this one was chosen by losses."""
    line: Sequence[Group] = ()
    """All rows of a report's line, whose spreads are pooled where there are more than two."""

    def ratio(self, metric: str, read: Callable[[RunRecord], float | None] | None = None) -> Ratio:
        """Return the ratio of a figure that all runs have; `read` reads it, None: the record's field of that name."""
        read = read or attrgetter(metric)
        counted = isinstance(read(self.first.first), int)
        first, second = (
            Side.of([read(run) or 0.0 for run in row.records], counted) for row in (self.first, self.second)
        )
        text = text_noise(self.first.records, self.second.records) if metric in LOSSES else None
        pooled = pooled_spread(self.line, read) if len(self.line) > 2 else None
        paired = seed_noise(self.first, self.second, read) if metric in LOSSES and pooled is None else None
        ratio = make_ratio(metric, first, second, aa_floor(self.alike, read), text, pooled, len(self.line), paired)
        objection = self._objection(metric)
        drifts = not (metric.startswith(_UNTIMED) or self.took_turns or TURNS in self.despite)
        if drifts and ratio.p_value is not None and objection is None:
            # Runs of one model before, between and after both rows have the drift in their spread. The repeats of a row
            # lack it, and their mean drifts as a single run does.
            floor = aa_floor([each for each in self.alike if self._within(each)], read)
            first, second = (replace(side, variance=None, runs=1) for side in (first, second))
            ratio = replace(make_ratio(metric, first, second, floor), runs=ratio.runs)
            objection = None if floor else Objection("not in turns", NOT_IN_TURNS)
        if self.choices > 1 and metric in _LEARNED and ratio.p_value is not None:
            alone = min(1.0, (ratio.p_alone or 0.0) * self.choices)
            p_value = min(1.0, ratio.p_value * self.choices)
            ratio = replace(ratio, low=None, high=None, p_value=p_value, p_alone=alone)
        if objection is not None:
            ratio = replace(ratio, low=None, high=None, p_value=None, objection=objection)
        return replace(ratio, carried=self._carried(metric))

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The figures in the order in which they are asked: of one model in one layout, losses first."""
        one, other = self.first.first, self.second.first
        alike = model_identity(one) == model_identity(other)
        apart = {difference.condition for difference in differences(one, other)}
        return ORDER if not alike or apart & {"layout", KERNELS} else (ORDER[-1], *ORDER[:-1])

    def _objection(self, metric: str) -> Objection | None:
        """Return why a figure is not judged, whatever its noise is."""
        doubted = doubt(metric, [*self.first.records, *self.second.records])
        if doubted is not None:
            return Objection("in doubt", doubted)
        if self._other_training and not self._may_train_otherwise and (metric in _LEARNED or self._costs_otherwise):
            return Objection("other training", f"they were trained otherwise: {_told(self._other_training)}")
        return None

    @cached_property
    def took_turns(self) -> bool:
        """Whether a drift of the machine falls on both rows, as where runs of one lie before and after the other's.

        Counted are the pairs of runs in which the first row's ended before the other began, half where they ran at once
        (the statistic of Mann and Whitney, 1947).
        """
        ones, others = ([_span_s(run) for run in row.records] for row in (self.first, self.second))
        pairs = len(ones) * len(others)
        off = abs(sum((a[1] <= b[0]) - (b[1] <= a[0]) for a, b in product(ones, others))) / 2
        return off < pairs / 2 and off <= MOST_OFF * math.sqrt(pairs * (len(ones) + len(others) + 1) / 12)

    def _within(self, runs: Sequence[RunRecord]) -> bool:
        """Return whether both rows ran within the time of these runs."""
        around, own = ([_span_s(run) for run in each] for each in (runs, [*self.first.records, *self.second.records]))
        return min(around)[0] <= min(own)[0] and max(end for _, end in own) <= max(end for _, end in around)

    @cached_property
    def _other_training(self) -> dict[str, tuple[Any, Any]]:
        """The keys of `training_of` in which the rows differ; one that a record lacks is not known to."""
        one, other = (training_of(row.first) | _held(row.first) for row in (self.first, self.second))
        keys = [key for key in one if key in other and key not in self.chosen]
        return {key: (one[key], other[key]) for key in keys if one[key] != other[key]}

    @property
    def _may_train_otherwise(self) -> bool:
        """Whether that is allowed; an optimizer that may differ brings its own rates."""
        brings = "optimizer" in self.despite and len({optimizer_of(row.first) for row in (self.first, self.second)}) > 1
        return brings or TRAINING in self.despite

    @property
    def _costs_otherwise(self) -> bool:
        rates = ("model.init_std", TOKENS, *(f"training.{key}" for key in _RATES))
        return not all(key.startswith(rates) for key in self._other_training)

    @property
    def waived(self) -> tuple[str, ...]:
        """The objections that `despite` lifts, in words."""
        training = self._other_training and self._may_train_otherwise
        told = [f"other training: {_told(self._other_training)}"] if training else []
        return (*told, *(["sides that did not run in turns"] if TURNS in self.despite and not self.took_turns else []))

    def _carried(self, metric: str) -> str:
        """Return the cautions on one row alone that touch a figure."""
        found = []
        for kind, concerned in self._cautions.items():
            untouched = {"all": False, "machine": metric in _LEARNED, "timed": metric.startswith(_UNTIMED)}
            if not untouched[KINDS[kind].touches]:
                found.append(f"{self.names[concerned]}: {KINDS[kind].carried}")
        return "; ".join(found)

    @cached_property
    def _cautions(self) -> dict[int, int]:
        """Index of a kind of caution that a verdict carries → the one row, 0 or 1, that it concerns."""
        found = {}
        for place, kind in enumerate(KINDS):
            concerned = [bool(kind.carried and kind.sentences(row.records)) for row in (self.first, self.second)]
            if sum(concerned) == 1:
                found[place] = concerned.index(True)
        return found


NOT_IN_TURNS = (
    "they did not run in turns, so that a drift of the machine would count as a difference (`sweep --repeat` lets them "
    "take turns)"
)


def _held(record: RunRecord) -> dict[str, Any]:
    """Return how far a run came whose length is a time: as the machine's speed had it; else nothing."""
    return {} if record.time_limit_s is None else {TOKENS: f"{record.tokens:,}"}


def _told(changed: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{key} {one} against {other}" for key, (one, other) in changed.items())


def _span_s(record: RunRecord) -> tuple[float, float]:
    """Return when a run began and ended, as POSIX times."""
    begin_s = datetime.fromisoformat(record.started_at).timestamp()
    return begin_s, begin_s + record.duration_s
