"""The job of a fine-tuning, which its ranks read from a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from efficientbench.basics.foreign import read_whole
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.curriculum.choice import CurriculumRecord
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.records.record_parts import DataSource
from efficientbench.running.job import AnyJob
from efficientbench.running.output_folder import HELD_OUT_LOSSES
from efficientbench.training.checkpoints.manifest import Manifest


@dataclass(frozen=True)
class TuningJob(AnyJob):
    """One fine-tuning, ready to start."""

    memory_advice = "a smaller training.micro_batch_size, zero.offload=optimizer or more ranks would help"

    config: FinetuneConfig
    output: Path
    nodes: int
    world: int
    """The number of ranks of all nodes."""
    model: str
    """The folder or hub id of the base model."""
    examples: Path
    """This node's file of `write_examples`."""
    fingerprint: str
    """The SHA-256 of examples and order; the run fails if nodes differ."""
    steps: int
    warmup: int
    curriculum: CurriculumRecord
    data: DataSource
    resume: Path | None = None
    """The checkpoint to resume from; the first node's job decides for all."""
    held_out_too_long: int = 0
    """The number of held-out examples that were truncated or dropped as too long."""
    unusable: dict[str, int] = field(default_factory=dict)
    """The number of rows that were left out as unusable, by reason."""

    @property
    def cache(self) -> Path:
        return Path(self.config.cache)

    @property
    def ranks_per_node(self) -> int:
        return self.world // self.nodes

    @property
    def resumed_step(self) -> int:
        """The step from which this attempt resumes; 0 if it starts anew."""
        return 0 if self.resume is None else int(self.resume.name.rpartition("-")[2])

    @property
    def held_out_losses(self) -> Path:
        """The file of the held-out losses so far, which a resumed run reads."""
        return self.output / HELD_OUT_LOSSES

    def manifest(self, step: int, holds: str, progress: dict[str, Any]) -> Manifest:
        """Return the manifest of the state after `step` steps, still without files.

        `holds` and `progress`: see `Manifest`.
        """
        return Manifest(
            step=step,
            stopped=False,
            holds=holds,
            config=self.config.model_dump(mode="json"),
            data=[self.fingerprint],
            layout={"world": self.world},
            formula=FORMULAS,
            steps_left_out=0,
            optimizer_step=step,
            # DeepSpeed saves its own loss scale.
            loss_scale=None,
            progress=progress,
        )

    @classmethod
    def read(cls, path: Path) -> TuningJob:
        """Read a file that `write` has written. Raises OSError, and ValueError if the file is not a job."""
        return TypeAdapter(cls).validate_json(read_whole(path))
