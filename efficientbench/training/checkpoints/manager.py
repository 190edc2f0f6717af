"""A run's checkpoints as its ranks see them: when one is due, what it holds, and how a run goes on from one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.optimizer.optimizer import MegatronOptimizer

from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.metrics.definitions import FORMULAS
from efficientbench.training import groups
from efficientbench.training.checkpoints import state
from efficientbench.training.checkpoints.manifest import Manifest, verify
from efficientbench.training.checkpoints.pieces import Piece
from efficientbench.training.checkpoints.read import MetadataReader
from efficientbench.training.checkpoints.save import Saver, sharded
from efficientbench.training.checkpoints.storage import CommonStrategy, LoadStrategy
from efficientbench.training.errors import CheckpointError

if TYPE_CHECKING:
    from efficientbench.training.checkpoints.held import Held


class Checkpoints:
    """Saves and restores this rank's part of a run. Every method is called by all ranks together."""

    def __init__(
        self,
        config: RunConfig,
        layout: Layout,
        steps: int,
        data: list[str],
        run_folder: Path,
        parameters: list[Held],
        optimizer: MegatronOptimizer,
        progress: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """
        Args:
            config, layout: of the run.
            steps: optimizer steps in all.
            data: fingerprint of each source's tokens.
            run_folder: where `checkpoint/` lies.
            parameters, optimizer: of this rank.
            progress: what the listeners of rank 0 keep for the next attempt, as plain data.
        """
        self.config, self.layout, self.steps = config, asdict(layout), steps
        self.data, self.optimizer, self.progress = data, optimizer, progress
        self.parameters, self.device = parameters, parameters[0].parameter.device
        self.saver = Saver(run_folder, config.checkpoint.keep, config.checkpoint.time_limit_s)
        self._last_step = 0

    def is_due(self, step: int, stopped: bool) -> bool:
        """Whether a checkpoint follows this step: each interval, where the run was asked to stop, and at its end."""
        interval = self.config.checkpoint.interval
        wanted = stopped or step == self.steps or (interval > 0 and step % interval == 0)
        return wanted and step != self._last_step

    @property
    def is_writing(self) -> bool:
        """Whether an asynchronous one is under way."""
        return self.saver.writing is not None

    def is_written(self) -> bool:
        """Whether an asynchronous one is ready for `finish`."""
        return self.saver.is_written()

    def finish(self, wait: bool = True) -> bool:
        """End an asynchronous one; returns whether there was one to end."""
        return self.saver.finish(wait)

    def save(self, step: int, stopped: bool, steps_left_out: int = 0) -> None:
        """Begin the checkpoint after `step` steps; a synchronous one has ended when this returns.

        The last one of a run holds the weights alone: nothing goes on from it, and they are a sixth of the whole.

        Raises:
            SaveError, OSError: see `Saver.save`.
        """
        last = step == self.steps and not stopped
        if not last:
            state.fill_optimizer(self.optimizer, None)
        content = Manifest(
            step=step,
            stopped=stopped,
            holds="weights" if last else "everything",
            config=self.config.model_dump(mode="json"),
            data=self.data,
            layout=self.layout,
            formula=FORMULAS,
            steps_left_out=steps_left_out,
            optimizer_step=max(groups.gather(state.updates_made(self.optimizer))),
            loss_scale=state.loss_scale(self.optimizer),
            progress=self.progress(),
        )
        asynchronous = self.config.checkpoint.asynchronous and not (last or stopped)
        self.saver.save(content, self._to_write(everything=not last), asynchronous)
        self._last_step = step

    def _to_write(self, everything: bool) -> Iterator[Piece]:
        yield from state.weights(self.parameters, to_write=True)
        if everything:
            yield from state.optimizer_states(self.parameters, self.optimizer, to_write=True)
            yield from state.generators(dist.get_rank(), self.device)

    def restore(self, folder: Path) -> Manifest:
        """Set model, optimizer, loss scale and random generators to those of a checkpoint, of any layout.

        Raises:
            CheckpointError: a file is damaged, or the checkpoint is not of this model; nothing was trained then.
        """
        manifest = self._verified(folder)
        # Here, where a refusal is told as such: within the engine's reading it would be an error of the engine's.
        MetadataReader(folder, manifest.files).read_metadata()
        if manifest.data != self.data:
            raise CheckpointError(
                f"{folder}: was trained on other tokens than data.path gives now; --fresh begins anew"
            )
        going_on = manifest.step < self.steps
        if going_on and manifest.holds != "everything":
            raise CheckpointError(f"{folder}: holds weights alone, from which no training goes on")
        wanted = list(state.weights(self.parameters, to_write=False))
        read: list[Piece] = []
        if going_on:
            state.fill_optimizer(self.optimizer, manifest.optimizer_step)
            wanted += state.optimizer_states(self.parameters, self.optimizer, to_write=False)
            read = list(state.generators(dist.get_rank(), self.device)) if manifest.layout == self.layout else []
        with torch.no_grad():
            dist_checkpointing.load(
                sharded([*wanted, *read]),
                str(folder),
                LoadStrategy(manifest.files),
                CommonStrategy(),
                validate_access_integrity=False,
            )
        if read:
            state.set_generators(read, self.device)
        if going_on and manifest.loss_scale is not None:
            state.set_loss_scale(self.optimizer, manifest.loss_scale)
        self._last_step = manifest.step
        return manifest

    def _verified(self, folder: Path) -> Manifest:
        """Each rank verifies some of the files, and all hear of it before any reads a weight."""
        problem, manifest = None, None
        try:
            manifest = verify(folder, dist.get_rank(), dist.get_world_size())
        except CheckpointError as error:
            problem = str(error)
        for each in groups.gather(problem):
            if each is not None:
                raise CheckpointError(each)
        assert manifest is not None
        return manifest
