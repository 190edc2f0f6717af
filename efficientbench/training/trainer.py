"""The training loop on megatron's pipeline schedules. It emits events and computes no metric."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.pipeline_parallel import get_forward_backward_func

from efficientbench.config.schema import RunConfig
from efficientbench.training import finite, groups
from efficientbench.training.batches import Batch, Batches
from efficientbench.training.checkpoints.manager import Checkpoints
from efficientbench.training.checkpoints.manifest import Manifest
from efficientbench.training.errors import NonFiniteError
from efficientbench.training.events import (
    CheckpointEnded,
    CheckpointStarted,
    Event,
    Listener,
    Routing,
    StepEnded,
    StepStarted,
    TrainingEnded,
    ValidationEnded,
    ValidationStarted,
)
from efficientbench.training.optimizer import set_learning_rate
from efficientbench.training.optimizer_step import QueuedUpdate, can_queue
from efficientbench.training.schedule import learning_rate

LossFunction = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


class Trainer:
    """Trains this rank's stages of the model together with all other ranks."""

    def __init__(
        self,
        config: RunConfig,
        steps: int,
        stages: list[DistributedDataParallel],
        optimizer: MegatronOptimizer,
        batches: Batches,
        listeners: list[Listener],
        token_bytes: torch.Tensor | None = None,
        checkpoints: Checkpoints | None = None,
        before: Manifest | None = None,
    ) -> None:
        """
        Args:
            config: the run.
            steps: optimizer steps in all.
            stages, optimizer, batches: of this rank; several stages where the pipeline is interleaved.
            listeners: called with every event, in order.
            token_bytes: [V] int64, UTF-8 bytes of each token; None where the tokenizer does not tell.
            checkpoints: saves the state; None: it is not saved.
            before: of the checkpoint that all state is of; None: training begins.
        """
        self.config, self.steps = config, steps
        self.steps_before = before.step if before is not None else 0
        self.validation_owed = before is not None and before.stopped
        self.stages, self.optimizer, self.batches = stages, optimizer, batches
        self.listeners, self.token_bytes, self.checkpoints = listeners, token_bytes, checkpoints
        self.finite = finite.FiniteCheck(batches.device, config.training.dtype == "fp16")
        self.skipped = before.steps_left_out if before is not None else 0
        """Steps left out because loss or gradients were not finite."""
        device = batches.device
        self.queued = QueuedUpdate(optimizer, device) if can_queue(optimizer, device) else None
        """None: the host has to decide whether the weights are updated, and waits for the device before."""
        for stage in stages:
            stage.config.grad_scale_func = optimizer.scale_loss
            stage.config.finalize_model_grads_func = self.finite.finalize_gradients

    def train(self, stop_requested: Callable[[], bool]) -> bool:
        """All steps that are left, with validation and checkpoints at intervals and at the end; ends early once any
        rank is asked to stop.

        Returns whether it was.
        """
        step, stopped = self.steps_before, False
        if self.validation_owed and self._is_validated(step):
            self.validate(step)
        while step < self.steps and not stopped:
            step += 1
            stopped = self.train_step(step, stop_requested())
            if not stopped and self._is_validated(step):
                self.validate(step)
            self._checkpoint(step, stopped)
        self._emit(TrainingEnded(step, stopped))
        return stopped

    def _checkpoint(self, step: int, stopped: bool) -> None:
        """Save, and end what a process beside the training has written."""
        if self.checkpoints is None:
            return
        due = self.checkpoints.is_due(step, stopped)
        if not due and not self.checkpoints.is_written():
            return
        self._emit(CheckpointStarted(step))
        self.checkpoints.finish()
        if due:
            self.checkpoints.save(step, stopped, self.skipped)
        if step == self.steps or stopped:
            self.checkpoints.finish()
        self._emit(CheckpointEnded(step, self.checkpoints.is_writing))

    def _is_validated(self, step: int) -> bool:
        training = self.config.training
        interval, every_tokens = training.validation_interval, training.validate_every_tokens
        tokens_per_step = training.global_batch_size * training.seq_len
        completes = (
            every_tokens and step * tokens_per_step // every_tokens > (step - 1) * tokens_per_step // every_tokens
        )
        return bool(step == self.steps or (interval and step % interval == 0) or completes)

    def train_step(self, step: int, stop: bool = False) -> bool:
        """One optimizer step; returns whether any rank asked to stop.

        Raises:
            NonFiniteError: loss or gradients are not finite, in more steps than may be left out.
        """
        self._emit(StepStarted(step))
        rate = learning_rate(self.config.training, step, self.steps)
        set_learning_rate(self.optimizer, rate)
        for stage in self.stages:
            stage.zero_grad_buffer()
        self.optimizer.zero_grad()
        sums = self._forward_backward(partial(self.batches.training_step, step), forward_only=False)
        seen, told = self._queue_update_and_read(sums, float(stop))
        found = finite.find(seen)
        non_finite = self._leave_out(step, found) if found is not None else None
        updated, norm = self._updated(step, found, seen)
        stops, of_micro_batches, counted = told.tensor_split([1, 1 + sums.numel()], dim=1)
        loss, tokens, _ = _total(of_micro_batches.reshape(-1, *sums.shape)).sum(dim=0).tolist()
        routing = self._routing(counted.double().sum(dim=0).tolist())
        self._emit(StepEnded(step, loss / tokens, norm, rate, int(tokens), not updated, non_finite, routing))
        return bool(stops.any())

    def _queue_update_and_read(self, sums: torch.Tensor, stop: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Queue the update, where the optimizer's can be queued, then wait for the device, once in the step.

        Args:
            sums: [n, 3], what `_forward_backward` gave.
            stop: 1 where this rank is asked to stop.

        Returns:
            Of every rank, on the host: [ranks, 3], what `finite.find` wants; [ranks, 1 + 3 n + counted] float32: the
            wish to stop, the sums, what routers counted. Sums are made here, in float64, which not all devices have.
        """
        flags, routed = self.finite.flags(sums[:, 0].sum()), self._take_routing()
        norm = self.queued.norm() if self.queued is not None else torch.zeros_like(flags[0])
        own = [flags, norm.view(1), torch.full_like(norm, stop).view(1), sums.flatten()]
        gathered = groups.gather_rows(torch.cat(own if routed is None else [*own, routed.flatten()]))
        if self.queued is not None:
            self.queued.update(norm, finite.left_out(gathered[:, :3]))
        told = gathered.cpu()
        return told[:, :3], told[:, 3:]

    def _updated(self, step: int, found: finite.NonFinite | None, seen: torch.Tensor) -> tuple[bool, float | None]:
        """Whether the weights are updated, here at the latest, and the gradients' norm; `seen` is as of `finite.find`.

        Raises:
            NonFiniteError: where megatron updated them, with a norm that is not finite.
        """
        if found is not None:
            return False, None
        if self.queued is not None:
            return True, float(seen[0, 2])
        updated, norm, _ = self.optimizer.step()
        finite.check_norm(step, norm, finite.largest(seen))
        return updated, norm

    def _leave_out(self, step: int, found: finite.NonFinite) -> str:
        """Count a step that the optimizer leaves out; returns what is not finite."""
        allowed = self.config.faults.skip_non_finite_steps
        if self.skipped >= allowed:
            left_out = f"; {allowed} such steps were left out before" if allowed else ""
            raise NonFiniteError(
                f"step {step}: {found.told}{left_out}; the weights are those of step {step - 1} "
                "(faults.skip_non_finite_steps=N leaves out up to N such steps)",
                step,
                found.ranks[0],
            )
        self.skipped += 1
        return found.told

    def validate(self, step: int) -> None:
        """Mean loss over the validation batches."""
        self._emit(ValidationStarted(step))
        for stage in self.stages:
            stage.eval()
        with torch.no_grad():
            sums = [
                self._forward_backward(partial(self.batches.validation_step, index), forward_only=True)
                for index in range(self.config.training.validation_batches)
            ]
        for stage in self.stages:
            stage.train()
        # [batches, 3] over all ranks: loss, tokens, UTF-8 bytes.
        batches = groups.sum_over_ranks(_total(torch.stack(sums).cpu()), self.batches.device).tolist()
        loss, tokens, utf8_bytes = (sum(column) for column in zip(*batches, strict=True))
        counted = int(utf8_bytes) if self.token_bytes is not None else None
        means = tuple(batch[0] / batch[1] for batch in batches)
        self._emit(ValidationEnded(step, loss / tokens, means, int(tokens), counted))

    def _forward_backward(self, batches: Callable[[], Iterator[Batch]], forward_only: bool) -> torch.Tensor:
        """Loss, tokens and UTF-8 bytes [n, 3] of each of this rank's n micro-batches; zeros where it has no loss.

        `batches()` begins the step's micro-batches; each stage that reads them goes through them by itself.
        """
        training = self.config.training
        interleaved = len(self.stages) > 1
        stored = get_forward_backward_func()(
            forward_step_func=self._forward_step,
            data_iterator=[
                batches() if groups.reads_batches(index if interleaved else None) else None
                for index in range(len(self.stages))
            ],
            model=list(self.stages),
            num_microbatches=self.batches.micro_batches,
            seq_length=training.seq_len,
            micro_batch_size=training.micro_batch_size,
            forward_only=forward_only,
        )
        if not groups.holds_loss():
            return torch.zeros(self.batches.micro_batches, 3, device=self.batches.device)
        return torch.stack(stored)

    def _forward_step(
        self, batches: Iterator[Batch] | None, model: DistributedDataParallel
    ) -> tuple[torch.Tensor, LossFunction | None]:
        if batches is None:
            return model(None), None
        batch = next(batches)
        output = model(batch.tokens, batch.labels, batch.loss_mask)
        return output, partial(self._loss, batch)

    def _loss(self, batch: Batch, loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tokens = batch.loss_mask.sum()
        utf8_bytes = torch.zeros_like(tokens)
        if self.token_bytes is not None and not self.stages[-1].training:
            utf8_bytes = (self.token_bytes[batch.labels] * batch.loss_mask).sum()
        # Copies, because the schedules divide the loss in place.
        sums = torch.stack([loss.detach().float(), tokens.float(), utf8_bytes.float()])
        return loss, tokens.int(), sums

    def _take_routing(self) -> torch.Tensor | None:
        """What the routers of all stages of this rank have counted in the step; None for a model without experts."""
        counted = [stage.module.take_routing() for stage in self.stages]
        return None if counted[0] is None else torch.stack(counted).sum(dim=0)

    def _routing(self, routed: list[float]) -> Routing | None:
        """From what `take_routing` gave, summed over all ranks, layer after layer."""
        training, moe = self.config.training, self.config.model.moe
        if moe is None:
            return None
        layers = [routed[first : first + 1 + moe.experts] for first in range(0, len(routed), 1 + moe.experts)]
        losses = len(layers) * training.global_batch_size // training.micro_batch_size
        return Routing(
            auxiliary_loss=sum(layer[0] for layer in layers) / losses if moe.auxiliary_loss else None,
            tokens_per_expert=tuple(tuple(map(int, layer[1:])) for layer in layers),
        )

    def _emit(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)


def _total(of_micro_batches: torch.Tensor) -> torch.Tensor:
    """[..., n, 3] on the host, each exact in float32 → sums over n in float64, which not all devices have."""
    return of_micro_batches.double().sum(dim=-2)
