"""A run's checkpoints on its ranks: when one is due, and how a run resumes from one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.optimizer.optimizer import MegatronOptimizer

from efficientbench.basics.errors import CheckpointError
from efficientbench.config.budget import steps_at_tokens
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.training.checkpoints import contents
from efficientbench.training.checkpoints.manifest import Manifest, begun_with, identity
from efficientbench.training.checkpoints.metadata_checks import check_shapes
from efficientbench.training.checkpoints.read import MetadataReader
from efficientbench.training.checkpoints.save import Saver, sharded_state_dict
from efficientbench.training.checkpoints.shards import Shard, ShardedParameter
from efficientbench.training.checkpoints.storage import CommonStrategy, LoadStrategy
from efficientbench.training.checkpoints.timing import TimeInterval
from efficientbench.training.checkpoints.together import verify_together


class Checkpoints:
    """Saves and restores this rank's part of a run. Every method is called by all ranks together."""

    def __init__(
        self,
        config: RunConfig,
        layout: Layout,
        steps: int,
        data: list[str],
        run_folder: Path,
        parameters: list[ShardedParameter],
        optimizer: MegatronOptimizer,
        progress: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """Take the parts of this rank's checkpoints.

        Args:
            config: the run's configuration.
            layout: the run's layout.
            steps: optimizer steps of the run, from its first to its last.
            data: fingerprint of each source's tokens.
            run_folder: the run's folder, which has `checkpoint/`.
            parameters: this rank's parameters.
            optimizer: this rank's optimizer.
            progress: returns the state of rank 0's listeners for the next attempt, as plain data.
        """
        self.config, self.layout, self.steps = config, asdict(layout), steps
        self.data, self.optimizer, self.progress = data, optimizer, progress
        self.parameters, self.device = parameters, parameters[0].parameter.device
        self._marked = frozenset(steps_at_tokens(config).values())
        self.saver = Saver(run_folder, config.checkpoint.keep, config.checkpoint.time_limit_s, self._marked)
        self._last_step = 0
        measurement = config.measurement
        self._window = measurement.warmup_steps + measurement.min_steps
        self._restored_step = 0
        self.by_time = TimeInterval(config.checkpoint.interval_s)

    @property
    def has_bound(self) -> bool:
        """Whether a checkpoint falls due by time."""
        return self.config.checkpoint.interval > 0 or self.config.checkpoint.interval_s is not None

    @property
    def bound_s(self) -> float | None:
        """Longest time of training that a kill loses, s, once the measured window is over; None: no time is set."""
        return self.by_time.bound_s if self.has_bound else None

    @property
    def longest_bound_s(self) -> float | None:
        """The longest `bound_s` that held so far, s."""
        return self.by_time.longest_s if self.has_bound else None

    def announcement(self) -> str:
        """Return what a kill loses, in words."""
        if not self.has_bound:
            return "a kill loses all training: checkpoint.interval=0, and checkpoint.interval_s is not set"
        return self.by_time.announcement(self._restored_step + self._window)

    def asks_by_time(self, step: int) -> bool:
        """Return whether this rank asks for a checkpoint after this step, since the last one was long ago.

        Rank 0 alone asks. It waits for the end of the attempt's measured window, and for a checkpoint in flight.
        """
        begun = self._restored_step + self._window
        waits = dist.get_rank() != 0 or step < begun or self.saver.writing is not None
        return not waits and self.has_bound and self.by_time.is_due()

    def is_due(self, step: int, stopped: bool, asked: bool = False) -> bool:
        """Return whether a checkpoint is due after this step: at intervals and tokens, at a stop, and at the run's end.

        `asked`: whether any rank asks for one, by `asks_by_time`.
        """
        interval = self.config.checkpoint.interval
        marked = step in self._marked or (interval > 0 and step % interval == 0)
        return (asked or stopped or step == self.steps or marked) and step != self._last_step

    def save(self, step: int, stopped: bool, steps_left_out: int = 0) -> None:
        """Begin the checkpoint after `step` steps; a synchronous one is complete when this returns.

        A run's last checkpoint holds the weights alone, since no run resumes from it. With AdamW in bf16 they are a
        seventh of a full checkpoint.

        Raises:
            SaveError, OSError: see `Saver.save`.
        """
        last = step == self.steps and not stopped
        if not last:
            # A rank whose optimizer has made no update yet must write its moments too, or no rank can read them.
            contents.fill_optimizer(self.optimizer, None)
        manifest = Manifest(
            step=step,
            stopped=stopped,
            holds="weights" if last else "everything",
            config=self.config.model_dump(mode="json"),
            data=self.data,
            layout=self.layout,
            formula=FORMULAS,
            steps_left_out=steps_left_out,
            optimizer_step=max(gather(contents.updates_made(self.optimizer), float)),
            loss_scale=contents.loss_scale(self.optimizer),
            progress=self.progress(),
        )
        shards = contents.tensors_to_write(self.parameters, self.optimizer, self.device, everything=not last)
        self.saver.save(manifest, shards, self.config.checkpoint.asynchronous and not (last or stopped))
        self._last_step = step

    def load(self, resume: Path | None) -> Manifest | None:
        """Restore the checkpoint `resume`; without one, take what the configuration begins with, if anything.

        Raises:
            CheckpointError: as `restore` and `initialise`.
        """
        init, begun = self.config.init, begun_with(self.config.init)
        if resume is not None:
            return self.restore(resume)
        if begun is not None and init.branches:
            return self.restore(begun, init.sha256)
        if begun is not None:
            self.initialise(begun, init.sha256)
        return None

    def restore(self, folder: Path, sha256: str | None = None) -> Manifest:
        """Set model, optimizer, loss scale and, in the same layout, random generators to those of a checkpoint.

        `sha256`: its `manifest.identity`; None: any.

        Raises:
            CheckpointError: a file is damaged, or the checkpoint is of another run.
        """
        manifest = self._verified(folder, sha256)
        if manifest.data != self.data:
            raise CheckpointError(
                f"{folder}: was trained on other tokens than data.path gives now (unset, it is the text of Python's "
                "own files, which differs between its releases); --fresh starts anew"
            )
        resumes = manifest.step < self.steps
        if resumes and manifest.holds != "everything":
            raise CheckpointError(f"{folder}: holds weights alone, from which no training can resume")
        if resumes:
            # Megatron reads into tensors that exist, and a new optimizer has none.
            contents.fill_optimizer(self.optimizer, manifest.optimizer_step)
        generators = list(contents.generators(self.device)) if resumes and manifest.layout == self.layout else []
        tensors = contents.tensors_to_read(self.parameters, self.optimizer, everything=resumes)
        self._read(folder, manifest, [*tensors, *generators])
        if generators:
            contents.set_generators(generators, self.device)
        if resumes and manifest.loss_scale is not None:
            contents.set_loss_scale(self.optimizer, manifest.loss_scale)
        self._last_step = self._restored_step = manifest.step
        return manifest

    def initialise(self, folder: Path, sha256: str | None) -> None:
        """Set only the weights to those of another run's checkpoint, of any layout and dtype.

        The float32 masters become the weights as rounded to this run's dtype; all other states stay new.

        Args:
            folder: the checkpoint's folder.
            sha256: the checkpoint's `manifest.identity`; None: any checkpoint.

        Raises:
            CheckpointError: a file is damaged, or the checkpoint is another one or of another model.
        """
        manifest = self._verified(folder, sha256)
        self._read(folder, manifest, list(contents.tensors_to_read(self.parameters, self.optimizer, everything=False)))
        self.optimizer.reload_model_params()

    def _verified(self, folder: Path, sha256: str | None) -> Manifest:
        manifest = verify_together(folder)
        if sha256 not in (None, identity(folder)):
            raise CheckpointError(f"{folder}: is another checkpoint than that which the run was to begin with")
        return manifest

    def _read(self, folder: Path, manifest: Manifest, shards: list[Shard]) -> None:
        """Fill the tensors of `shards` from a verified checkpoint.

        Raises:
            CheckpointError: the checkpoint has other tensors.
        """
        # Megatron reads the metadata again, but its error would hide the reason.
        metadata = MetadataReader(folder, manifest.files).read_metadata()
        try:
            check_shapes(metadata, shards)
        except CheckpointError as error:
            raise CheckpointError(f"{folder}: refused, {error}") from None
        with torch.no_grad():
            dist_checkpointing.load(
                sharded_state_dict(shards),
                str(folder),
                LoadStrategy(manifest.files),
                CommonStrategy(),
                validate_access_integrity=False,
            )
