"""The runs of a study as tasks of a queue: their records, and the trunks and branches among them.

The budgets of one variant, size and seed share the steps before their learning rates fall. The run with the most tokens
is the trunk. It keeps all state where the rate of a shorter run begins to fall, and that run is a branch of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from efficientbench.basics.errors import ConfigError, MetricsError
from efficientbench.config.init import InitConfig
from efficientbench.config.schema import RunConfig
from efficientbench.launchers.processes.failure import Failure
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.records.plausible import read_plausible
from efficientbench.metrics.records.record import RunRecord
from efficientbench.running.resume import MAY_DIFFER, differences, settings
from efficientbench.studies.ladder import Cell
from efficientbench.sweep.tasks import TrainingTask
from efficientbench.training.checkpoints.manifest import checkpoint_folder

_NOT_COMPARED = (*MAY_DIFFER, "device", "kernels.", "measurement.", "init.", "data.order_tokens")
"""Keys in which a record of a run may differ from its plan on another machine, or before its trunk is there."""
RATE = "training.learning_rate"
OTHER = "its record is of"
"""How the reason begins for a complete run that was trained otherwise."""


@dataclass(frozen=True)
class StudyTask(TrainingTask):
    """A run of a study. It stays complete on other devices, and once the state that it began with is removed."""

    @classmethod
    def of(cls, task: TrainingTask) -> StudyTask:
        """Return a sweep's task as a study's."""
        return cls(**{each.name: getattr(task, each.name) for each in fields(task)})

    def is_trained(self, device_name: str, smaller_too: bool) -> bool:
        return record_of(self)[0] is not None


def record_of(task: TrainingTask, any_rate: bool = False) -> tuple[RunRecord | None, str | None]:
    """Return the complete record of a run, wherever it was trained; else why there is none.

    any_rate: whether the record may have another learning rate.
    """
    if not task.folder.record.is_file() or task.config is None:
        return None, None
    try:
        record = read_plausible(task.folder.record)
    except MetricsError as error:
        return None, str(error)
    if record.status != "completed":
        return None, f"its run {record.status}"
    if record.formula_id != FORMULAS:
        return None, f"{OTHER} the formulas {record.formula_id}"
    other = _other_values(record, task.config, (*_NOT_COMPARED, RATE) if any_rate else _NOT_COMPARED)
    return (None, f"{OTHER} another {', '.join(other)}") if other else (record, None)


def other_values(task: TrainingTask) -> dict[str, object]:
    """Return key → value of a run's complete record, where the plan has another value; of OTHER formulas too."""
    assert task.config is not None, "a study's models are not refused"
    return _other_values(read_plausible(task.folder.record), task.config, _NOT_COMPARED)


def _other_values(record: RunRecord, config: RunConfig, ignored: tuple[str, ...]) -> dict[str, object]:
    trained, planned = (settings(each, ignored) for each in (record.config, config.model_dump(mode="json")))
    return {key: trained.get(key) for key in differences(trained, planned)}


@dataclass(frozen=True)
class Planned:
    """One run of the ladder."""

    variant: str
    cell: Cell
    seed: int
    task: StudyTask
    begin: int = 0
    """Steps that it takes over from its trunk."""

    @property
    def share(self) -> float:
        """The share of its steps that it trains itself."""
        steps = self.task.steps
        return 1 - self.begin / steps if steps else 1.0


def grown(runs: Sequence[Planned]) -> list[Planned]:
    """Return the runs as trunks and branches, in the same order."""
    trunks: dict[tuple[str, str, int], Planned] = {}
    for run in runs:
        key = run.variant, run.cell.size, run.seed
        trunks[key] = max(trunks.get(key, run), run, key=lambda each: each.cell.tokens)
    of = [trunks[run.variant, run.cell.size, run.seed] for run in runs]
    begins = {id(run): _begin(run) for run, trunk in zip(runs, of, strict=True) if run is not trunk}
    found = []
    for run, trunk in zip(runs, of, strict=True):
        if run is not trunk:
            found.append(_branch(run, trunk.task, begins[id(run)]))
            continue
        marked = [begins[id(each)] for each, own in zip(runs, of, strict=True) if own is run and each is not run]
        found.append(_trunk(run, sorted(marked)))
    return found


def _config(run: Planned) -> RunConfig:
    assert run.task.config is not None, "a study's models are not refused"
    return run.task.config


def _tokens_per_step(run: Planned) -> int:
    training = _config(run).training
    return training.global_batch_size * training.seq_len


def _begin(run: Planned) -> int:
    """Return the step after which the rate of a run falls, after which it is a branch."""
    steps = int(run.cell.tokens) // _tokens_per_step(run)
    return steps - _config(run).training.fall_steps(steps)


def _trunk(run: Planned, marked: Sequence[int]) -> Planned:
    """Return the run, which keeps all state after some of its steps."""
    config = _config(run)
    at_tokens = tuple(step * _tokens_per_step(run) for step in marked)
    words = (*run.task.arguments, f"checkpoint.at_tokens=[{','.join(map(str, at_tokens))}]")
    config = config.changed("checkpoint", at_tokens=at_tokens)
    return replace(run, task=replace(run.task, arguments=words, config=config))


def _branch(run: Planned, trunk: StudyTask, begin: int) -> Planned:
    """Return the run, which continues a trunk after a step."""
    config, refused = _config(run), run.task.refused
    init = InitConfig(run=str(trunk.folder.path), step=begin, state="everything")
    words = (*run.task.arguments, f"init.run={init.run}", f"init.step={begin}", "init.state=everything")
    own, least = (run.task.steps or 0) - begin, config.measurement.warmup_steps + config.measurement.min_steps
    if refused is None and own < least:
        why = f"its branch of {own} steps is shorter than the {least} of measurement.warmup_steps and min_steps"
        refused = Failure("mistake", f"{why}: lower these, or set study.trunks: false")
    config = config.model_copy(update={"init": init})
    task = replace(run.task, arguments=words, config=config, refused=refused, after=(trunk.id,))
    return replace(run, task=task, begin=begin)


def without_gone(runs: Sequence[Planned]) -> list[Planned]:
    """Return the runs, of which a branch is a run of its own where its trunk is complete and the state there is gone.

    That is so where the branch was added later, or its record was lost. In the trunk's order it is the same run.
    """
    by_id = {run.task.id: run.task for run in runs}
    return [_alone(run, by_id[run.task.after[0]]) if run.begin else run for run in runs]


def _alone(run: Planned, trunk: StudyTask) -> Planned:
    config, whole = run.task.config, trunk.config
    kept = checkpoint_folder(trunk.folder.path, run.begin).is_dir() or record_of(trunk)[0] is None
    if kept or config is None or whole is None or record_of(run.task)[0] is not None:
        return run
    order = whole.training.tokens
    data = config.data.model_copy(update={"order_tokens": order})
    words = [word for word in run.task.arguments if not word.startswith("init.")]
    config = config.model_copy(update={"init": InitConfig(), "data": data})
    task = replace(run.task, arguments=(*words, f"data.order_tokens={order}"), config=config, after=())
    return replace(run, task=task, begin=0)


def remove_marked(runs: Sequence[Planned]) -> None:
    """Remove the state that trunks keep for their branches, where all of these are complete.

    Raises ConfigError: it cannot be removed.
    """
    by_id = {run.task.id: run.task for run in runs}
    needed = {name for run in runs for name in run.task.after if record_of(run.task)[0] is None}
    for run in runs:
        for name in run.task.after:
            if name in needed:
                continue
            folder = checkpoint_folder(by_id[name].folder.path, run.begin)
            try:
                if folder.is_dir():
                    shutil.rmtree(folder)
            except OSError as error:
                raise ConfigError(f"output: {folder} cannot be removed: {error.strerror}") from None
