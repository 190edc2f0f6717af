"""The job that the ranks of a fine-tuning get, as a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from efficientbench.basics.foreign import read_whole
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.curriculum.choice import CurriculumRecord
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.records.record_parts import DataSource
from efficientbench.running.output_folder import HELD_OUT_LOSSES
from efficientbench.training.checkpoints.manifest import Manifest


@dataclass(frozen=True)
class TuningJob:
    """One fine-tuning, ready to start."""

    config: FinetuneConfig
    output: Path
    nodes: int
    world: int
    """Ranks of all nodes."""
    model: str
    """What transformers loads the base by."""
    examples: Path
    """File of `write_examples`, of this node."""
    fingerprint: str
    """SHA-256 of examples and order: the same on all nodes, or the run stops."""
    steps: int
    warmup: int
    curriculum: CurriculumRecord
    data: DataSource
    resume: Path | None = None
    """The checkpoint to resume from; the first node's job decides for all."""
    held_out_too_long: int = 0
    """Held-out examples that were cut or left out because they are too long."""

    @property
    def resumed_step(self) -> int:
        """Optimizer steps before this attempt; 0 where it begins anew."""
        return 0 if self.resume is None else int(self.resume.name.rpartition("-")[2])

    @property
    def held_out_losses(self) -> Path:
        """File of the held-out losses so far, which a resumed run goes on with."""
        return self.output / HELD_OUT_LOSSES

    def manifest(self, step: int, holds: str) -> Manifest:
        """Return what describes the state after `step` steps, as yet without files; `holds`: as in `Manifest`."""
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
            # DeepSpeed keeps its own.
            loss_scale=None,
            progress={},
        )

    def write(self, path: Path) -> None:
        """Write the job as JSON. Raises MetricsError where the file cannot be written."""
        write_whole(path, TypeAdapter(TuningJob).dump_json(self, indent=2).decode())

    @classmethod
    def read(cls, path: Path) -> TuningJob:
        """Read what `write` wrote. Raises OSError, and ValueError for a file of another form."""
        return TypeAdapter(cls).validate_json(read_whole(path))
