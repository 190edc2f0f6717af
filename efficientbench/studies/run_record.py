"""The record of a study's run, on whatever machine it was trained."""

from __future__ import annotations

from dataclasses import dataclass, fields

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.records.plausible import read_plausible
from efficientbench.metrics.records.record import RunRecord
from efficientbench.running.resume import MAY_DIFFER, differences, settings
from efficientbench.sweep.tasks import TrainingTask

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
    ignored = (*_NOT_COMPARED, RATE) if any_rate else _NOT_COMPARED
    other = differences(*(settings(each, ignored) for each in (record.config, task.config.model_dump(mode="json"))))
    return (None, f"{OTHER} another {', '.join(other)}") if other else (record, None)
