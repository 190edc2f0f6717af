"""The runs of a study: each variant in every cell of the ladder with every seed, and in the search of its rates.

Size and tokens of a cell are the baseline's: all variants are trained on the same tokens in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from efficientbench.architecture.variant import UndeclaredError
from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.config.budget import wanted_tokens
from efficientbench.config.matrix import load_matrix
from efficientbench.config.schema import RunConfig
from efficientbench.config.spellings import ALIASES
from efficientbench.config.training import LENGTHS, RISES
from efficientbench.costs.model import count_parameters, flops_per_token
from efficientbench.metrics.analysis.repeats import dotted
from efficientbench.metrics.formulas.definitions import MOST_EPOCHS
from efficientbench.metrics.records.figure import count
from efficientbench.planning.plan import hidden
from efficientbench.planning.text import text_budget, text_of, tokenized
from efficientbench.studies.ladder import Cell
from efficientbench.studies.suite import REACH, StudySection
from efficientbench.studies.tasks import Planned, StudyTask, grown
from efficientbench.sweep.combinations import Combination
from efficientbench.sweep.machine import Machine
from efficientbench.sweep.selection import Request, chosen_combinations
from efficientbench.sweep.tasks import sized, tasks_of, with_micro_batch

SCHEDULE = ("training.lr_schedule=wsd", "training.min_learning_rate=0")
"""What every run of a study has, unless a key says otherwise: its end does not depend on its rate."""
RISE = 0.1
"""Share of a size's fewest tokens over which the rate of all its runs rises."""
DECIDED = {
    **dict.fromkeys((f"training.{key}" for key in RISES), "the least of study.tokens_per_parameter"),
    **dict.fromkeys((f"training.{key}" for key in LENGTHS), "study.tokens_per_parameter"),
    **{"training.learning_rate": "study.learning_rate", "match": "study.match", "match_to": "study.baseline"},
    "label": "the cell",
}
"""Keys that no override of a study may set → what decides them."""
SHARED = ("training.", "data.", "kernels.", "init.")
OWN = ("training.learning_rate", "training.matrix_learning_rate")
"""Beginnings of keys in which the runs of a cell are equal, and exceptions."""
Number = TypeVar("Number", int, float)
Models = dict[tuple[str, str], Combination[RunConfig]]
"""(variant, size) → its configuration without length and rate."""


@dataclass(frozen=True)
class LadderPlan:
    """The models and the cells of a study, on one machine."""

    section: StudySection
    request: Request
    """The sweep's, for folders and command lines."""
    machine: Machine
    jobs: int | None
    models: Models
    """The models of each variant and size, those of the target's size included."""
    widths: Mapping[tuple[str, str], int]
    """(variant, size) → the feed-forward width before matching."""
    cells: Mapping[tuple[str, float], Cell]
    """(size, tokens per parameter) → the cell."""
    target: Cell

    @property
    def suite(self) -> Path:
        """The folder that has all runs' folders and the queue."""
        return Path(next(iter(self.models.values())).config.output).absolute()

    def runs(self, rates: Mapping[tuple[str, str], float]) -> list[Planned]:
        """Return every run of the ladder: by cell, seed and variant. Without a rate it keeps its matrix's."""
        found = []
        request = replace(self.request, repeat=self.section.seeds, generate=False)
        for (size, ratio), cell in self.cells.items():
            for variant in self.section.ordered:
                model = self._changed(variant, cell, f"{ratio:g}x", rates.get((variant, size)))
                first = model.config.training.seed
                tasks = tasks_of(request, model, self.machine, self.jobs)
                found += [Planned(variant, cell, first + at, StudyTask.of(task)) for at, task in enumerate(tasks)]
        places = {cell: place for place, cell in enumerate(self.cells.values())}
        found.sort(key=lambda run: (places[run.cell], run.seed))
        return grown(found) if self.section.trunks else found

    def search(self, variant: str, size: str, rate: float) -> StudyTask:
        """Return the run of a search at one rate: at the fewest tokens, with the first seed."""
        cell = self.cells[size, min(self.section.tokens_per_parameter)]
        model = self._changed(variant, cell, f"rate={rate:g}", rate)
        (task,) = tasks_of(replace(self.request, generate=False), model, self.machine, self.jobs)
        return StudyTask.of(task)

    def _changed(self, variant: str, cell: Cell, label: str, rate: float | None) -> Combination[RunConfig]:
        """Return a variant's run in a cell, with a label and a rate; its rise is that of the size's fewest tokens."""
        model = self.models[variant, cell.size]
        least = self.cells[cell.size, min(self.section.tokens_per_parameter)]
        rise = round(RISE * least.tokens)
        training: dict[str, object] = {
            **dict.fromkeys((*LENGTHS, *RISES)),
            **{"tokens": int(cell.tokens), "lr_warmup_tokens": rise},
        }
        words = [f"training.tokens={int(cell.tokens)}", f"training.lr_warmup_tokens={rise}"]
        if rate is not None:
            training["learning_rate"] = rate
            words.append(f"training.learning_rate={rate!r}")
        changed = model.config.training.model_copy(update=training)
        config = model.config.model_copy(update={"training": changed, "label": label})
        return replace(model, config=config, overrides=(*model.overrides, *words))


def plan_ladder(
    section: StudySection,
    request: Request,
    machine: Machine,
    jobs: int | None,
    dry_run: bool = False,
    despite: Collection[str] = (),
) -> LadderPlan:
    """Return the plan of a study, checked.

    Args:
        section: what the study compares.
        request: matrix, overrides and generation of its runs.
        machine: the machine that runs it.
        jobs: number of runs at once; None: as many as the devices allow.
        dry_run: as of `build_tasks`.
        despite: `reach`: a target further away than a study reaches.

    Raises:
        ConfigError: a name, a key or the ladder is wrong; the message has every mistake of one kind.
    """
    request = replace(request, overrides=study_overrides(section, request.overrides))
    models, widths = models_of(section.ordered, section.sizes, request)
    settled = with_micro_batch(list(models.values()), machine, jobs, dry_run)
    # The target is not trained here: its memory must not decide a micro-batch.
    at_target, target_widths = models_of(section.ordered, (section.target.size,), request)
    models = at_target | dict(zip(models, settled, strict=True))
    # A key of all runs is refused in each; its first run stands for them.
    refused = {each.refused: each.name for each in reversed(models.values()) if each.refused}
    if refused:
        raise ConfigError([f"{name}: {reason}" for reason, name in refused.items()])
    baseline = section.baseline
    ascending = sorted(section.sizes, key=lambda size: _flops(models[baseline, size].config))
    section = section.model_copy(update={"sizes": tuple(ascending)})
    cells = {
        (size, ratio): cell_of(models[baseline, size].config, ratio)
        for size in section.sizes
        for ratio in sorted(section.tokens_per_parameter)
    }
    _check_apart(cells)
    target = cell_of(models[baseline, section.target.size].config, section.target.tokens_per_parameter)
    plan = LadderPlan(section, request, machine, jobs, models, widths | target_widths, cells, target)
    _check_models(plan)
    schedule = models[baseline, section.sizes[0]].config.training.lr_schedule
    if section.trunks and schedule != "trapezoid":
        raise ConfigError(f"study: trunks: training.lr_schedule={schedule} has no branches: set trunks: false, or wsd")
    check_text(plan)
    if "reach" not in despite:
        _check_reach(plan)
    _check_runs(plan)
    return plan


def study_overrides(section: StudySection, given: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides of every run. Raises ConfigError: the user's set what the study decides."""
    keys = [word.partition("=")[0] for word in given]
    decided = [key for key in (ALIASES.get(key, key) for key in keys) if key in DECIDED]
    if decided:
        raise ConfigError([f"{key}: {DECIDED[key]} decides it in a study" for key in decided])
    match = () if section.match == "none" else (f"match={section.match}", f"match_to={section.baseline}")
    return (*SCHEDULE, *given, *match)


def models_of(
    variants: Sequence[str], sizes: Sequence[str], request: Request
) -> tuple[Models, dict[tuple[str, str], int]]:
    """Return the matched models, by size, and their widths before; a model that cannot be has its reason."""
    names = {f"{variant}_{size}": (variant, size) for size in sizes for variant in variants}
    chosen = {each.name: each for each in chosen_combinations(replace(request, only=tuple(names)))}
    widths = {pair: chosen[name].config.model.ffn_hidden_size for name, pair in names.items()}
    found = {each.name: each for each in sized(list(chosen.values()), request.matrix, tell=False)}
    return {pair: found[name] for name, pair in names.items()}, widths


def cell_of(config: RunConfig, ratio: float) -> Cell:
    """Return the cell of a baseline's model at so many tokens per parameter, in whole steps.

    Raises ConfigError: the variant declares no formula for its FLOPs or its parameters.
    """
    step = config.training.global_batch_size * config.training.seq_len
    tokens = wanted_tokens(f"{ratio!r}x", _declared(config, lambda: count_parameters(config.model).total))
    return Cell(config.size, _flops(config) / 6, -(-tokens // step) * step)


def _flops(config: RunConfig) -> float:
    return _declared(config, lambda: flops_per_token(config.model, config.training.seq_len).training)


def _declared(config: RunConfig, figure: Callable[[], Number]) -> Number:
    try:
        return figure()
    except UndeclaredError as error:
        raise ConfigError(f"study: baseline: {config.variant}: {error}") from None


def _check_models(plan: LadderPlan) -> None:
    """Raise ConfigError where the models of a cell differ in more than architecture, or do not show what they do."""
    section, problems = plan.section, []
    length = plan.models[section.baseline, section.target.size].config.training.seq_len
    for model in plan.models.values():
        baseline = plan.models[section.baseline, model.config.size]
        one, other = (dotted(each.config.model_dump(mode="json")) for each in (model, baseline))
        problems += [
            f"{model.name}: {key} is {one[key]}, and {other[key]} of {baseline.name}: the runs of a cell share it"
            for key in one.keys() & other.keys()
            if key.startswith(SHARED) and not key.startswith(OWN) and one[key] != other[key]
        ]
        if model.config.training.seq_len != length:
            problems.append(
                f"{model.name}: training.seq_len is {model.config.training.seq_len}, and {length} of the target: a "
                "mechanism for long text is invisible in a short one"
            )
        if reason := hidden(model.config):
            problems.append(f"{model.name}: {reason}")
    if problems:
        raise ConfigError(sorted(problems))


def _check_apart(cells: Mapping[tuple[str, float], Cell]) -> None:
    """Raise ConfigError where two sizes, or two budgets of a size, are the same; cells are ascending."""
    problems = []
    for ((_, less), one), ((size, more), other) in itertools.pairwise(cells.items()):
        if one.size != size and one.parameters == other.parameters:
            problems.append(f"study: sizes: {one.size} and {size} are one size, with the same FLOPs per token")
        # A run's folder has its tokens per parameter in six digits.
        if one.size == size and (one.tokens == other.tokens or f"{less:g}" == f"{more:g}"):
            alike = f"{less!r} and {more!r} are one budget at {size}, of {count(one.tokens)} tokens in whole steps"
            problems.append(f"study: tokens_per_parameter: {alike}")
    if problems:
        raise ConfigError(problems)


def check_text(plan: LadderPlan, epochs_per_token: float | None = None) -> None:
    """Raise ConfigError where a cell reads the text too often.

    epochs_per_token: the epochs of the text that a token is, as a run has found; None: as manifests say, if any.
    """
    if epochs_per_token is None:
        run = next(run for run in plan.runs({}) if run.variant == plan.section.baseline)
        config = run.task.config
        known = tokenized(config.data) if config and run.task.plan else None
        epochs = text_budget(run.task.plan, known).epochs if known and run.task.plan else None
        if epochs is None:
            return
        epochs_per_token = epochs / run.cell.tokens
    problems = [
        f"{size} × {ratio:g}: {count(cell.tokens)} tokens are {cell.tokens * epochs_per_token:.1f} epochs of this "
        f"text: {MOST_EPOCHS:g} are the most; leave out {ratio:g}, or add text"
        for (size, ratio), cell in plan.cells.items()
        if cell.tokens * epochs_per_token > MOST_EPOCHS
    ]
    if problems:
        raise ConfigError(problems)


def unreadable_text(plan: LadderPlan) -> str | None:
    """Return why the text of a study cannot be read; None where it can, or where no run has a plan."""
    plans = {run.cell.size: run.task.plan for run in plan.runs({})}
    for each in filter(None, plans.values()):
        try:
            text_of(each)
        except DataError as error:
            return f"data.path: {error}"
    return None


def _check_reach(plan: LadderPlan) -> None:
    largest = max(plan.cells.values(), key=lambda cell: cell.parameters)
    times = plan.target.parameters / largest.parameters
    if times <= REACH:
        return
    sizes = load_matrix(plan.request.matrix).sizes
    models, _ = models_of((plan.section.baseline,), tuple(sizes), plan.request)
    able = {size: _flops(each.config) / 6 for (_, size), each in models.items() if not each.refused}
    would = [size for size, n in able.items() if plan.target.parameters / REACH <= n < plan.target.parameters]
    hint = f". With {min(would, key=able.__getitem__)} as largest it would" if would else ""
    raise ConfigError(
        f"study: target: {plan.target.size} is {times:.3g} times the largest size, {largest.size}; a study reaches "
        f"{REACH} times (--despite reach){hint}"
    )


def _check_runs(plan: LadderPlan) -> None:
    """Raise ConfigError where a run of the ladder cannot start here for a mistake, such as too few steps."""
    refused = [
        f"{run.variant}_{run.cell.size}: {failure.reason}"
        for run in plan.runs({})
        if (failure := run.task.refused) and failure.kind == "mistake"
    ]
    if refused:
        raise ConfigError(list(dict.fromkeys(refused)))
