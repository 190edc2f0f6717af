"""Two runs, or groups of repeats, side by side: the ratio of each figure with its confidence interval.

With two or more repeats on both sides, the interval comes from the spread between runs (Welch's t-test of logarithms).
With fewer, it comes from the spread within the runs (the steps' bootstrap, the validation's standard error), which does
not contain the noise between runs and seeds. Where identical models under two names lie beside the compared runs, their
largest difference is the noise floor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from efficientbench.metrics.analysis.conditions import CONDITIONS, KERNELS, Difference, changed_keys, differences
from efficientbench.metrics.analysis.quality import Cost, cost_to_loss, lowest_common_loss
from efficientbench.metrics.analysis.repeats import Group, model_identity
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.ratio import Z_95, Ratio, make_ratio
from efficientbench.metrics.records.record import RunRecord

QUALITY = ("validation_loss", "bits_per_byte")
"""Figures that runs which are speed only are not compared by."""
METRICS = (
    *("tokens_per_s", "al_s", "al_s_p50", "tt_tokens_per_param_s", "energy_j_per_token", "energy_j_per_step", "aec_w"),
    *("amu_gb", "peak_memory_device_bytes", "peak_memory_allocated_bytes", "pcu", "mfu"),
    *QUALITY,
)
"""Figures that are compared, by their names in the record."""

# Figure → the figure whose relative interval within a run it shares: tokens / time is as sure as time.
_WITHIN = {
    "al_s": "al_s",
    "tokens_per_s": "al_s",
    "tt_tokens_per_param_s": "al_s",
    "al_s_p50": "al_s_p50",
}


@dataclass(frozen=True)
class Comparison:
    """Two groups of runs, and how the second differs from the first."""

    first: Group
    second: Group
    identical: bool
    """Whether both are the same model: an A/A test, whose differences are all noise."""
    despite: tuple[Difference, ...]
    """Conditions that differ, which the caller allowed."""
    model_changes: dict[str, tuple[object, object]]
    """Keys of the model's configuration that differ → both values: the choice that is compared."""
    other_changes: dict[str, tuple[object, object]]
    """Further keys that differ, which no condition covers → both values."""
    ratios: tuple[Ratio, ...]
    unavailable: dict[str, str]
    """Figure that could not be compared → why."""
    target_loss: float | None
    """Validation loss of the cost to a quality, nats; None where `unavailable['cost']` has the reason."""
    costs: tuple[Ratio, ...]
    """Ratios of tokens, time and energy to the target loss."""
    speed_only: str | None
    """Why speed alone is compared: a run's losses say nothing about its architecture, or they differ by no more than
    noise. Else None."""


def compare(
    first: Group,
    second: Group,
    despite: Collection[str] = (),
    target_loss: float | None = None,
    neighbours: Sequence[Group] = (),
) -> Comparison:
    """Compare two groups of runs.

    Args:
        first: the runs that ratios are relative to.
        second: the runs compared with them; ratios are second over first.
        despite: names of conditions that may differ.
        target_loss: of the cost to a quality, nats; None: the lowest that all runs surely got to.
        neighbours: further groups, among which identical models set the noise floor.

    Raises:
        MetricsError: the runs differ in conditions that are not in `despite`, or `despite` names one that is none.
    """
    known = (*CONDITIONS, KERNELS)
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
    pairs = identical_pairs([first, second, *neighbours], like=first)
    ratios, unavailable = [], {}
    for metric in METRICS:
        why = _why_not(metric, [*first.records, *second.records])
        if why is None:
            ratios.append(ratio_of(metric, first, second, noise_floor(metric, pairs)))
        else:
            unavailable[metric] = why
    target, costs = _costs(first, second, target_loss, pairs, unavailable)
    changed = changed_keys(first.first, second.first)
    model = {key: values for key, values in changed.items() if key.startswith("model.")}
    return Comparison(
        first=first,
        second=second,
        identical=model_identity(first.first) == model_identity(second.first),
        despite=tuple(found),
        model_changes=model,
        other_changes={key: values for key, values in changed.items() if not key.startswith(_COVERED)},
        ratios=tuple(ratios),
        unavailable=unavailable,
        target_loss=target,
        costs=costs,
        speed_only=_short_of_text([*first.records, *second.records]) or _speed_only(ratios, first, second),
    )


_COVERED = (
    *("variant", "size", "output", "model.", "parallel.", "data.", "training.seed", "training.dtype"),
    *("training.seq_len", "training.micro_batch_size", "training.global_batch_size", "training.tokens"),
    *("training.steps", "training.recompute"),
)
"""Keys of the configuration that a condition covers, or that do not change the training."""


def identical_pairs(groups: Sequence[Group], like: Group) -> list[tuple[Group, Group]]:
    """Return the pairs of groups of one model under two names, which ran under the same conditions as `like`."""
    alike = [(group, model_identity(group.first)) for group in groups if not differences(like.first, group.first)]
    return [
        (one, other)
        for i, (one, model) in enumerate(alike)
        for other, other_model in alike[i + 1 :]
        if one.name != other.name and model == other_model
    ]


def noise_floor(metric: str, pairs: Sequence[tuple[Group, Group]]) -> float | None:
    """Return the largest ratio, above 1, of a figure's means between identical models; None without such runs."""
    ratios = []
    for one, other in pairs:
        first, second = one.spread(metric), other.spread(metric)
        if first is not None and second is not None and first.mean > 0 and second.mean > 0:
            ratios.append(abs(math.log(second.mean / first.mean)))
    return math.exp(max(ratios)) if ratios else None


def _why_not(metric: str, records: Sequence[RunRecord]) -> str | None:
    """Return why the figure has no ratio; None where it has one."""
    short = _short_of_text(records)
    if short is not None and metric in QUALITY:
        return short
    lacking = next((record for record in records if not getattr(record, metric)), None)
    return None if lacking is None else f"{lacking.run}: {lacking.unavailable.get(metric, 'it is 0')}"


def ratio_of(metric: str, first: Group, second: Group, floor: float | None = None) -> Ratio:
    """Return the ratio of one figure, second over first; `floor`: the largest ratio between identical models."""
    errors = [[_relative_error(record, metric) for record in group.records] for group in (first, second)]
    return make_ratio(metric, first.values(metric), second.values(metric), errors, floor)


def _relative_error(record: RunRecord, metric: str) -> float | None:
    """Return the figure's relative standard error within its run; None where the record has none."""
    if metric in ("validation_loss", "bits_per_byte"):
        if record.validation_loss_se is None or not record.validation_loss:
            return None
        return record.validation_loss_se / record.validation_loss
    name = _WITHIN.get(metric)
    if name is None:
        return None
    low, high = getattr(record, f"{name}_ci_low"), getattr(record, f"{name}_ci_high")
    return None if low is None or low <= 0 else math.log(high / low) / 2 / Z_95


def _short_of_text(records: Sequence[RunRecord]) -> str | None:
    flagged = next((record for record in records if record.speed_only_reason), None)
    return None if flagged is None else f"{flagged.run}: {flagged.speed_only_reason}"


def _speed_only(ratios: Sequence[Ratio], first: Group, second: Group) -> str | None:
    loss = next((ratio for ratio in ratios if ratio.metric == "validation_loss"), None)
    if loss is None or loss.measurable is not False:
        return None
    noise = "the noise between seeds" if loss.basis.endswith("repeats") else "the validation loss's own standard error"
    if loss.noise_floor is not None and not loss.within_interval:
        noise = "what identical models differ by"
    unknown = "" if loss.basis.endswith("repeats") else " (the noise between seeds is not known: --repeat)"
    return f"the validation losses differ by {abs(loss.second - loss.first):.3g}, no more than {noise}{unknown}"


def _costs(
    first: Group,
    second: Group,
    target_loss: float | None,
    pairs: Sequence[tuple[Group, Group]],
    unavailable: dict[str, str],
) -> tuple[float | None, tuple[Ratio, ...]]:
    """Return the target loss and the ratios of tokens, time and energy to it; add reasons for gaps to `unavailable`."""
    try:
        target = target_loss
        if target is None:
            target = lowest_common_loss([*first.records, *second.records], Z_95)
        costs = [[cost_to_loss(record, target) for record in group.records] for group in (first, second)]
    except MetricsError as error:
        unavailable["cost"] = str(error)
        return target_loss, ()
    found = []
    for name, read in _COSTS.items():
        values = [[read(cost) for cost in side] for side in costs]
        given = [[value for value in side if value is not None] for side in values]
        if given != values:
            unavailable[name] = unavailable.get("energy_j_per_token", "not measured")
            continue
        errors = [[_cost_error(record, target, read) for record in group.records] for group in (first, second)]
        found.append(make_ratio(name, given[0], given[1], errors, _cost_floor(pairs, target, read)))
    return target, tuple(found)


_COSTS: dict[str, Callable[[Cost], float | None]] = {
    "tokens_to_loss": lambda cost: cost.tokens,
    "time_to_loss_s": lambda cost: cost.time_s,
    "energy_to_loss_j": lambda cost: cost.energy_j,
}


def _cost_error(record: RunRecord, target: float, read: Callable[[Cost], float | None]) -> float | None:
    """Return a cost's relative error, from the validation loss's standard error; None where an end is out of reach."""
    try:
        low, high = (read(cost_to_loss(record, target, shift)) for shift in (-Z_95, Z_95))
    except MetricsError:
        return None
    return math.log(high / low) / 2 / Z_95 if low and high else None


def _cost_floor(
    pairs: Sequence[tuple[Group, Group]], target: float, read: Callable[[Cost], float | None]
) -> float | None:
    """Return the largest ratio, above 1, of a cost between identical models that got to the target."""
    ratios = []
    for pair in pairs:
        try:
            values = [[read(cost_to_loss(record, target)) for record in group.records] for group in pair]
        except MetricsError:
            continue
        sides = [[math.log(value) for value in side if value] for side in values]
        if all(sides):
            ratios.append(abs(sum(sides[0]) / len(sides[0]) - sum(sides[1]) / len(sides[1])))
    return math.exp(max(ratios)) if ratios else None
