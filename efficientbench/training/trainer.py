"""The training loop on Megatron's pipeline schedules. It emits events and computes no metric."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.pipeline_parallel import get_forward_backward_func

from efficientbench.basics.errors import NonFiniteError
from efficientbench.config.schema import RunConfig
from efficientbench.model.moe import balance, take_routing
from efficientbench.training import groups
from efficientbench.training.checkpoints.manager import Checkpoints
from efficientbench.training.data.batch import Batch
from efficientbench.training.data.batches import Batches
from efficientbench.training.data.validation import ended, row_losses
from efficientbench.training.events import (
    CheckpointEnded,
    CheckpointStarted,
    Event,
    Listener,
    RecheckEnded,
    RecheckStarted,
    Routing,
    StepEnded,
    StepStarted,
    TrainingEnded,
    ValidationStarted,
)
from efficientbench.training.recheck import recheck
from efficientbench.training.step_loss import LossFunction, StepLoss
from efficientbench.training.step_rows import Rows
from efficientbench.training.time_limit import TimeLimit
from efficientbench.training.update import finite
from efficientbench.training.update.muon import set_momentum
from efficientbench.training.update.optimizer import QueuedUpdate, can_queue, gather_weights, set_rates
from efficientbench.training.update.schedule import learning_rate

logger = logging.getLogger(__name__)


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
        resume: Path | None = None,
        time_limit: TimeLimit | None = None,
    ) -> None:
        """Prepare this rank for training.

        Args:
            config: the run's configuration.
            steps: optimizer steps of the run, from its first to its last.
            stages: this rank's stages; several if the pipeline is interleaved.
            optimizer: this rank's optimizer.
            batches: this rank's micro-batches.
            listeners: functions to call with every event, in this order.
            token_bytes: [V] int64, UTF-8 bytes of each token; None if the tokenizer does not know them.
            checkpoints: loads and saves the state; None: begin with the weights as they are, and save no checkpoint.
            resume: the checkpoint to resume from; None: begin at step 1.
            time_limit: ends the run before `steps`, of which the schedules know nothing; None: train them all.
        """
        self.config, self.steps = config, steps
        self.tokens_per_step = config.training.global_batch_size * config.training.seq_len
        self.stages, self.optimizer, self.batches = stages, optimizer, batches
        self.listeners, self.token_bytes, self.checkpoints, self.resume = listeners, token_bytes, checkpoints, resume
        self.finite = finite.FiniteCheck(stages, batches.device, config.training.dtype == "fp16")
        self.loss = StepLoss(stages, batches.micro_batches, scaler=config.training.dtype == "fp16")
        self.time_limit = time_limit
        self._asked_to_save = False
        """Whether the newest step's rows ask for a checkpoint."""
        self.skipped = 0
        """Steps that were skipped because loss or gradients were not finite."""
        device = batches.device
        own_norm = self.finite.norm if dist.get_world_size() == 1 else None
        self.queued = QueuedUpdate(optimizer, device, own_norm) if can_queue(optimizer, device) else None
        """The update that the device decides on; None if the host has to decide, and so waits for the device."""
        # Megatron's schedules call the first before each backward pass and the second after the last one. The third,
        # around all micro-batches but the last, keeps incomplete gradients from being reduced.
        unsent = [stage.no_sync for stage in stages]
        for stage in stages:
            stage.config.grad_scale_func = optimizer.scale_loss
            stage.config.finalize_model_grads_func = finalize_model_grads
            stage.config.no_sync_func = unsent if len(unsent) > 1 else unsent[0]

    def train(self, stop_requested: Callable[[], bool]) -> bool:
        """Load the state to begin with, and train the remaining steps, with rechecks, validations and checkpoints.

        Returns:
            Whether any rank was asked to stop, which ends the training early.
        """
        step, stopped, every = self.load(), False, self.config.training.recheck_every
        if self.time_limit is not None:
            self.time_limit.attempt_begins(step)
        if self.checkpoints is not None and dist.get_rank() == 0:
            logger.info(self.checkpoints.announcement())
        while step < self.steps and not stopped:
            step += 1
            # After the last step a request to stop changes nothing: the run is complete.
            stopped = self.train_step(step, stop_requested) and step < self.steps
            if not stopped and every and step % every == 0:
                self.recheck(step)
            if not stopped and self._is_validated(step):
                self.validate(step)
            self.save(step, stopped)
        gather_weights(self.stages)
        self._emit(TrainingEnded(step, stopped))
        return stopped

    def load(self) -> int:
        """Restore the checkpoint to resume from, or another run's weights to begin with; return the completed steps."""
        restored = self.checkpoints.load(self.resume) if self.checkpoints is not None else None
        if restored is None:
            return 0
        self.skipped = restored.steps_left_out
        # An attempt that is asked to stop ends before the validation of its last step.
        if restored.stopped and self._is_validated(restored.step):
            self.validate(restored.step)
        return restored.step

    def save(self, step: int, stopped: bool) -> None:
        """Save a checkpoint if one is due, and complete an asynchronous one that all ranks have written."""
        if self.checkpoints is None:
            return
        due, saver = self.checkpoints.is_due(step, stopped, self._asked_to_save), self.checkpoints.saver
        if not due and not saver.is_written():
            return
        self._emit(CheckpointStarted(step))
        self.checkpoints.by_time.begins()
        saver.finish()
        if due:
            gather_weights(self.stages)
            self.checkpoints.save(step, stopped, self.skipped)
        if step == self.steps or stopped:
            saver.finish()
        self.checkpoints.by_time.ends(saved=due)
        self._emit(CheckpointEnded(step, saver.writing is not None, self.checkpoints.bound_s))

    def _is_validated(self, step: int) -> bool:
        training = self.config.training
        interval, every_tokens = training.validation_interval, training.validate_every_tokens
        per_step = self.tokens_per_step
        completes = every_tokens and step * per_step // every_tokens > (step - 1) * per_step // every_tokens
        return bool(step == self.steps or (interval and step % interval == 0) or completes)

    def train_step(self, step: int, stop_requested: Callable[[], bool] = lambda: False) -> bool:
        """Make one optimizer step; return whether any rank was asked to stop before the step's end.

        Raises:
            NonFiniteError: loss or gradients are not finite, in more steps than may be skipped.
        """
        # The host queues all of a step before it reads anything back, so that the device never waits for the host:
        #  1. Forward and backward passes of all micro-batches. At their end Megatron reduces the gradients over ranks;
        #     `self.finite` measures this rank's own part just before, since a reduction would spread a NaN everywhere.
        #  2. The norm of all gradients, still on the device.
        #  3. One all-gather: each rank sends its checks, wishes (stop, save, end), losses and experts' counts.
        #  4. The decision, by the device, from the same rows on every rank: a step that is not finite is skipped.
        #  5. Clipping and the update by AdamW and Muon, which obey the flag of 4.
        #  6. The one read of the step: the host waits for the rows of 3.
        # Where the host has to decide (`self.queued` is None: fp16's loss scaler, another library's AdamW), 2, 4 and 5
        # come after the read, as Megatron's own `optimizer.step`.
        self._emit(StepStarted(step))
        if self.time_limit is not None:
            self.time_limit.step_begins(step)
        rate = learning_rate(self.config.training, step, self.steps)
        set_rates(self.optimizer, rate, self.config.training.weight_decay)
        set_momentum(self.optimizer, step)
        # The stages' float32 buffers have the gradients; the masters of fp16 and bf16 weights have copies.
        for stage in self.stages:
            stage.zero_grad_buffer()
        self.optimizer.zero_grad()
        batches = partial(self.batches.training_step, step)
        sums = self._forward_backward(batches, self.batches.micro_batches, forward_only=False)
        norm = self.queued.norm() if self.queued is not None else None
        wishes = stop_requested(), self._asks_to_save(step), self._asks_to_end(step)
        gathered = groups.gather_rows(self._row(sums, norm, wishes))
        if self.queued is not None and norm is not None:
            self.queued.update(norm, finite.skip_flag(Rows.of(gathered, sums.shape).checks))
        rows = Rows.of(gathered.cpu(), sums.shape)
        problem = finite.find(rows.checks)
        if problem is not None:
            self._count_skipped(step, problem)
            updated, norm_read = False, None
        elif self.queued is not None:
            updated, norm_read = True, float(rows.checks[0, finite.NORM])
        else:
            updated, norm_read, _ = self.optimizer.step()
            finite.check_norm(step, norm_read, rows.checks)
        if updated:
            self._balance(Rows.of(gathered, sums.shape).routed)
        loss, targets, _ = rows.total().tolist()
        message = problem.message if problem is not None else None
        routing = self._routing(rows.routed.double().sum(dim=0).tolist())
        counts = self.tokens_per_step, int(targets)
        self._emit(StepEnded(step, loss / targets, norm_read, rate, *counts, not updated, message, routing))
        self._asked_to_save = bool(rows.save.any())
        if rows.last.any():
            self._end_after(step)
        return bool(rows.stop.any())

    def _asks_to_save(self, step: int) -> bool:
        return self.checkpoints is not None and self.checkpoints.asks_by_time(step)

    def _asks_to_end(self, step: int) -> bool:
        return self.time_limit is not None and dist.get_rank() == 0 and self.time_limit.is_over(step)

    def _end_after(self, step: int) -> None:
        """Make this step, whose end all ranks see, the run's last."""
        self.steps = step
        if self.checkpoints is not None:
            self.checkpoints.steps = step

    def _row(self, sums: torch.Tensor, norm: torch.Tensor | None, wishes: tuple[bool, ...]) -> torch.Tensor:
        """Return this rank's row of numbers at the end of a step, in the layout of `Rows`."""
        checks = self.finite.row(sums[:, 0].sum(), norm)
        # None of every stage, or of none.
        routed = [each for stage in self.stages if (each := take_routing(stage.module)) is not None]
        counts = [torch.stack(routed).sum(dim=0).flatten()] if routed else []
        told = [torch.full_like(checks[:1], float(wish)) for wish in wishes]
        return torch.cat([checks, *told, sums.flatten(), *counts])

    def _count_skipped(self, step: int, problem: finite.NonFinite) -> None:
        """Count a step that is skipped because loss or gradients are not finite.

        Raises:
            NonFiniteError: no more steps may be skipped.
        """
        allowed = self.config.faults.skip_non_finite_steps
        if self.skipped >= allowed:
            before = f"; {allowed} such steps were skipped before" if allowed else ""
            raise NonFiniteError(
                f"step {step}: {problem.message}{before}; the weights are those of step {step - 1} "
                "(faults.skip_non_finite_steps=N skips up to N such steps)",
                step,
                problem.ranks[0],
            )
        self.skipped += 1

    def validate(self, step: int) -> None:
        """Compute the mean loss over the validation text, and emit it."""
        self._emit(ValidationStarted(step))
        for stage in self.stages:
            stage.eval()
        batches = self.batches
        with torch.no_grad():
            sums = self._forward_backward(batches.validation_step, batches.validation_micro_batches, forward_only=True)
        for stage in self.stages:
            stage.train()
        own = batches.own_validation_rows()
        # [rows, 3]: loss, tokens, UTF-8 bytes.
        rows = torch.zeros(parallel_state.get_data_parallel_world_size() * len(own), 3, dtype=torch.float64)
        rows[own.start : own.stop] = sums.flatten(0, 1).cpu()
        documents = batches.validation.by_document(groups.sum_over_ranks(rows, batches.device).numpy())
        self._emit(ended(step, batches.validation, documents, self.token_bytes is not None))

    def recheck(self, step: int) -> None:
        """Compute a micro-batch of this step twice with the weights after it, and emit where the bits differ."""
        self._emit(RecheckStarted(step))
        # Some updates leave gradients at the weights, to which a backward pass would add.
        self.optimizer.zero_grad()
        batches = self.batches
        batch, count = partial(batches.recheck_step, step), batches.recheck_micro_batches
        compute = partial(self._forward_backward, batch, count, forward_only=False)
        self._emit(RecheckEnded(step, recheck(step, self.stages, compute, batches.device)))

    def _forward_backward(
        self, batches: Callable[[], Iterator[Batch]], micro_batches: int, forward_only: bool
    ) -> torch.Tensor:
        """Run the forward passes, and unless `forward_only` the backward passes, of all micro-batches.

        `batches()` returns an iterator of micro-batches; each stage that reads them has its own.

        Returns:
            Loss, tokens and UTF-8 bytes: [n, 3] of n micro-batches; with `forward_only`, [n, B, 3] of their sequences.
            Zeros on a rank without the loss.
        """
        training = self.config.training
        interleaved = len(self.stages) > 1
        # Every stage needs to know where documents end.
        ends = self.config.data.attention_within_documents
        stored = get_forward_backward_func()(
            forward_step_func=self._forward_step,
            data_iterator=[
                batches() if ends or groups.reads_batches(index if interleaved else None) else None
                for index in range(len(self.stages))
            ],
            model=list(self.stages),
            num_microbatches=micro_batches,
            seq_length=training.seq_len,
            micro_batch_size=training.micro_batch_size,
            forward_only=forward_only,
        )
        if not groups.holds_loss():
            shape = (micro_batches, training.micro_batch_size, 3) if forward_only else (micro_batches, 3)
            return torch.zeros(shape, device=self.batches.device)
        return torch.stack(stored)

    def _forward_step(
        self, batches: Iterator[Batch] | None, model: DistributedDataParallel
    ) -> tuple[torch.Tensor, LossFunction | None]:
        if batches is None:
            return model(None), None
        batch = next(batches)
        if not model.training:
            return model(batch.tokens, batch.labels, batch.weights), partial(row_losses, batch, self.token_bytes)
        weights, function = self.loss.of(batch)
        return model(batch.tokens, batch.labels, weights, documents=batch.documents), function

    def _routing(self, routed: list[float]) -> Routing | None:
        """Return the event's routing from the routers' counts, summed over ranks; `routed`: layer after layer."""
        training, moe = self.config.training, self.config.model.moe
        if moe is None:
            return None
        row = 1 + moe.experts
        layers = [routed[number * row : (number + 1) * row] for number in self.config.model.expert_layers]
        losses = len(layers) * training.global_batch_size // training.micro_batch_size
        return Routing(
            auxiliary_loss=sum(each[0] for each in layers) / losses if moe.balancing(training.objective) else None,
            tokens_per_expert=tuple(tuple(map(int, layer[1:])) for layer in layers),
        )

    def _balance(self, routed: torch.Tensor) -> None:
        """Give the routers the loads of this step, where their loss is over the global batch or a bias balances them.

        The host waits for nothing. The sums are exact, and so the same in every layout. A skipped step changes nothing:
        where numbers are not finite, the choices mean nothing.

        Args:
            routed: the ranks' counts as in `Rows`, on the device.
        """
        moe, engine = self.config.model.moe, self.stages[0].config
        if moe is None or not (engine.last_shares or engine.bias_rate):
            return
        counts = routed.long().sum(dim=0).view(-1, 1 + moe.experts)[:, 1:]
        for stage in self.stages:
            balance(stage.module, counts, self.tokens_per_step * moe.top_k)

    def _emit(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)
