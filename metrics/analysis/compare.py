"""Compare two runs, or two groups of repeats: the ratio of each figure, with its interval and a verdict.

A verdict needs the noise between runs. At least three repeats on each side show it, or an A/A floor does: at least
three runs of one model under the same conditions, neighbours included. Without either there is no verdict, since a
run's own spread does not contain that noise. `formulas.ratio` has the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.best_of import Best, best_of
from efficientbench.metrics.analysis.conditions import CONDITIONS, KERNELS, Difference, changed_keys, differences
from efficientbench.metrics.analysis.judging import LOSSES, TRAINING, TURNS, Judge
from efficientbench.metrics.analysis.noise import identical_runs
from efficientbench.metrics.analysis.quality import Cost, cost_to_loss, lowest_common_loss
from efficientbench.metrics.analysis.repeats import Group, load_group, load_neighbours, model_identity
from efficientbench.metrics.analysis.rollouts import rollout_ratios
from efficientbench.metrics.formulas.ratio import Ratio, corrected
from efficientbench.metrics.records.record import FIGURES, RunRecord
from efficientbench.metrics.records.runs import path_of

METRICS = tuple(sorted((name for name, row in FIGURES.items() if row.compared), key=lambda name: FIGURES[name].place))
"""The figures that are compared, by their names in the record, in the order of reports."""

SAME = {
    **dict.fromkeys(("tokens_per_s", "tt_tokens_per_param_s", "mfu"), "al_s"),
    "energy_j_per_step": "energy_j_per_token",
    "bits_per_byte": "validation_loss",
}
"""Figure → the figure that it is a form of, with the same noise: constants of a run (parameters, FLOPs) relate both."""


@dataclass(frozen=True)
class Comparison:
    """Two groups of runs, and how the second differs from the first."""

    judge: Judge
    """What compared the figures, and may compare further ones."""
    grids: tuple[Best, ...]
    """The grids from which both groups were chosen; empty where they were given."""
    identical: bool
    """Whether both groups are of the same model: an A/A test, whose differences are all noise."""
    despite: tuple[Difference, ...]
    """Conditions that differ, as the caller allowed."""
    model_changes: dict[str, tuple[object, object]]
    """Keys of the model's configuration that differ → both values: the choice under comparison."""
    other_changes: dict[str, tuple[object, object]]
    """Further keys that differ, which no condition covers → both values."""
    ratios: tuple[Ratio, ...]
    unavailable: dict[str, str]
    """Figure that could not be compared → the reason."""
    target_loss: float | None
    """Validation loss up to which costs are counted, nats; None where `unavailable['cost']` has the reason."""
    costs: tuple[Ratio, ...]
    """Ratios of the tokens, time and energy that reach the target loss."""
    rollouts: tuple[Ratio, ...]
    """Ratios of the rollouts' figures; all other figures are of the updates. Empty unless all runs learned from
    rewards."""
    speed_only: str | None
    """Why speed alone is compared: a run's losses say nothing about its architecture, or the losses differ by no more
    than noise. None if the losses are compared too."""

    @property
    def first(self) -> Group:
        return self.judge.first

    @property
    def second(self) -> Group:
        return self.judge.second


def compare_folders(
    first: str | Path, second: str | Path, *, despite: str | Collection[str] = (), target_loss: float | None = None
) -> Comparison:
    """Compare two runs, or two folders of repeats, as `efficientbench compare` does.

    Args:
        first: the folder of a run, or of its repeats: ratios are relative to it.
        second: the same of another run. Runs beside both show the noise between runs of identical models.
        despite: as for `compare`, or one text with commas between the names.
        target_loss: as for `compare`.

    Raises:
        MetricsError: a folder is no path, holds no run or several, or as `compare`.
    """
    if isinstance(despite, str):
        despite = [name.strip() for name in despite.split(",") if name.strip()]
    folders = path_of(first), path_of(second)
    groups = [load_group(folder) for folder in folders]
    return compare(groups[0], groups[1], despite, target_loss, load_neighbours(*folders))


def compare(
    first: Group,
    second: Group,
    despite: Collection[str] = (),
    target_loss: float | None = None,
    neighbours: Sequence[Group] = (),
    best: Collection[str] = (),
) -> Comparison:
    """Compare two groups of runs.

    Args:
        first: the runs that ratios are relative to.
        second: the runs compared with them; ratios are second over first.
        despite: names of conditions that may differ, or of objections of `judging` that are lifted.
        target_loss: the validation loss up to which costs are counted, nats; None for the lowest that all runs surely
            reached.
        neighbours: further groups of runs; those of identical models make an A/A floor.
        best: keys of training: of each group, with the neighbours that differ in these alone, the best is compared.

    Raises:
        MetricsError: the runs differ in conditions that are not in `despite`, or `despite` has an unknown name.
    """
    found = _differences(first, second, despite)
    judge = Judge(first, second, identical_runs(first, second, neighbours), despite)
    grids: tuple[Best, ...] = ()
    if best:
        grids = best_of(first, neighbours, best), best_of(second, neighbours, best)
        first, second = (grid.group for grid in grids)
        choices = math.prod(len(grid.tried) for grid in grids)
        judge = Judge(first, second, despite=despite, chosen=best, choices=choices)
    ratios, unavailable = [], {}
    for metric in METRICS:
        why = why_not(metric, [*first.records, *second.records])
        if why is None:
            ratios.append(judge.ratio(metric))
        else:
            unavailable[metric] = why
    target, costs = _costs(judge, target_loss, unavailable)
    rollouts = rollout_ratios(judge, unavailable)
    judged = iter(corrected([*ratios, *costs, *rollouts], SAME, judge.order))
    ratios, costs, rollouts = ([next(judged) for _ in part] for part in (ratios, costs, rollouts))
    changed = changed_keys(first.first, second.first)
    model = {key: values for key, values in changed.items() if key.startswith("model.")}
    return Comparison(
        judge=judge,
        grids=grids,
        identical=model_identity(first.first) == model_identity(second.first),
        despite=tuple(found),
        model_changes=model,
        other_changes={key: values for key, values in changed.items() if not key.startswith(_COVERED)},
        ratios=tuple(ratios),
        unavailable=unavailable,
        target_loss=target,
        costs=tuple(costs),
        rollouts=tuple(rollouts),
        speed_only=_short_of_text([*first.records, *second.records]) or _speed_only(ratios),
    )


def _differences(first: Group, second: Group, despite: Collection[str]) -> list[Difference]:
    """Return the conditions in which the groups differ.

    Raises MetricsError if one of them is not in `despite`, or if `despite` has an unknown name.
    """
    known = (*CONDITIONS, KERNELS, TRAINING, TURNS)
    unknown = [name for name in despite if name not in known]
    if unknown:
        raise MetricsError(f"{unknown[0]} is no condition of a comparison: they are {', '.join(known)}")
    found = differences(first.first, second.first)
    refused = [difference for difference in found if difference.condition not in despite]
    if refused:
        names = ",".join(dict.fromkeys(difference.condition for difference in refused))
        raise MetricsError(
            f"{first.name} and {second.name} differ in more than the model; "
            f"{'; '.join(map(str, refused))}. To compare them all the same: --despite {names}"
        )
    return found


_COVERED = (
    *("variant", "size", "match", "output", "wandb", "prometheus", "model.", "parallel.", "data.", "training.seed"),
    *("training.seq_len", "training.micro_batch_size", "training.global_batch_size", "training.global_batch_tokens"),
    *("training.tokens", "training.steps", "training.epochs", "training.recompute", "training.optimizer"),
    "training.dtype",
)
"""Keys of the configuration that a condition or the model covers, or that do not change the training."""


def why_not(metric: str, records: Sequence[RunRecord]) -> str | None:
    """Return why a figure of these runs has no ratio; None where it has one."""
    short = _short_of_text(records)
    if short is not None and metric in LOSSES:
        return short
    lacking = next((record for record in records if (getattr(record, metric) or 0) <= 0), None)
    return None if lacking is None else f"{lacking.run}: {lacking.unavailable.get(metric, 'it is not above 0')}"


def _short_of_text(records: Sequence[RunRecord]) -> str | None:
    flagged = next((record for record in records if record.speed_only_reason), None)
    return None if flagged is None else f"{flagged.run}: {flagged.speed_only_reason}"


def _speed_only(ratios: Sequence[Ratio]) -> str | None:
    loss = next((ratio for ratio in ratios if ratio.metric == "validation_loss"), None)
    if loss is None or loss.measurable is not False:
        return None
    return f"the validation losses differ by {abs(loss.second - loss.first):.3g}, no more than noise ({loss.basis})"


def _costs(judge: Judge, target_loss: float | None, unavailable: dict[str, str]) -> tuple[float | None, list[Ratio]]:
    """Return the target loss and the ratios of the costs to reach it; add the reason for each gap to `unavailable`."""
    records = [*judge.first.records, *judge.second.records]
    target = target_loss
    try:
        if target is None:
            target = lowest_common_loss(records, end=1)
        costs = [cost_to_loss(record, target) for record in records]
    except MetricsError as error:
        unavailable["cost"] = str(error)
        return target_loss, []
    found = []
    for name, read in COSTS.items():
        if any(read(cost) is None for cost in costs):
            unavailable[name] = unavailable.get("energy_j_per_token", "not measured")
        else:
            found.append(judge.ratio(name, partial(cost_of, target=target, read=read)))
    return target, found


COSTS: dict[str, Callable[[Cost], float | None]] = {
    "tokens_to_loss": lambda cost: cost.tokens,
    "time_to_loss_s": lambda cost: cost.time_s,
    "energy_to_loss_j": lambda cost: cost.energy_j,
}


def cost_of(record: RunRecord, target: float, read: Callable[[Cost], float | None]) -> float | None:
    """Return one cost of a run; None where the run's cost to the target loss is not known."""
    try:
        return read(cost_to_loss(record, target))
    except MetricsError:
        return None
