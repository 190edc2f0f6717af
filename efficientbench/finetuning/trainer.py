"""TRL's SFTTrainer with a fixed order of examples, our checkpoints, and held-out losses per example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from datasets import Dataset
from peft.optimizers import create_loraplus_optimizer
from transformers import PrinterCallback, TrainerCallback
from transformers.trainer import TRAINING_ARGS_NAME
from trl import SFTConfig, SFTTrainer

from efficientbench.basics.errors import TrainingError
from efficientbench.basics.foreign import check_regular
from efficientbench.finetuning.checkpoints import TuningCheckpoints
from efficientbench.finetuning.examples.examples import Examples
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.metrics.files import whole_file


class Tuner(SFTTrainer):
    """Trains from the first step to the last with one order, one optimizer and one schedule."""

    def __init__(
        self,
        model: Any,
        args: SFTConfig,
        tokenizer: Any,
        callbacks: Sequence[TrainerCallback],
        train: Examples,
        held_out: Examples,
        order: np.ndarray,
        lora_plus_ratio: float | None,
        losses_file: Path,
        checkpoints: TuningCheckpoints,
        heartbeat: HeartbeatWriter,
    ) -> None:
        """Build the trainer; all ranks must do so together.

        Args:
            model: the model from `build`, with its adapter.
            args: the arguments; `max_steps` must match the length of the order.
            tokenizer: the model's tokenizer.
            callbacks: callbacks besides the Trainer's own.
            train: the training examples.
            held_out: the held-out examples.
            order: the numbers of training examples, [steps · batch].
            lora_plus_ratio: the learning rate of B over that of A; None: one rate.
            losses_file: the file in which rank 0 stores the held-out losses, for a resume.
            checkpoints: publishes the checkpoints.
            heartbeat: this rank's heartbeat.
        """
        self.optimizer: Any
        self.control: Any
        self._order, self._lora_plus_ratio, self._losses_file = order, lora_plus_ratio, losses_file
        self.checkpoints, self._heartbeat = checkpoints, heartbeat
        self._held_out = held_out.rows()
        self.held_out_losses: dict[int, np.ndarray] = {}
        """Step → each held-out example's sum of losses and number of tokens after that step, float64 [examples, 2]."""
        self.before_evaluation: Callable[[], object] | None = None
        """Called before each validation."""
        super().__init__(
            model,
            args=args,
            train_dataset=Dataset.from_list(train.rows()),
            eval_dataset=Dataset.from_list(self._held_out),
            processing_class=tokenizer,
            callbacks=[_LossBefore(self), *callbacks],
        )
        # PrinterCallback would print every step's figures as a dictionary.
        self.remove_callback(PrinterCallback)

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> list[int]:
        # All ranks have the same order; accelerate gives each rank its part of every batch.
        return self._order.tolist()

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Return the optimizer; for LoRA+ with two learning rates."""
        if self.optimizer is None and self._lora_plus_ratio is not None:
            self.optimizer = create_loraplus_optimizer(
                self.model,
                torch.optim.AdamW,
                lr=self.args.learning_rate,
                loraplus_lr_ratio=self._lora_plus_ratio,
                loraplus_weight_decay=self.args.weight_decay,
            )
        return super().create_optimizer(model)

    def _get_output_dir(self, trial: Any = None) -> str:
        return str(self.checkpoints.partial)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint into the partial folder, and publish it."""
        self._heartbeat.at(self.state.global_step, "saving a checkpoint")
        super()._save_checkpoint(model, trial)
        by_deepspeed: list[Path] = []
        if self.is_deepspeed_enabled:
            engine = self.model_wrapped.checkpoint_engine
            by_deepspeed, engine.written = engine.written, []
        self.checkpoints.publish(
            self.state.global_step,
            by_deepspeed,
            lambda what: self._heartbeat.at(self.state.global_step, f"saving a checkpoint, {what}"),
        )

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Write the weights without the pickle of arguments, which nothing here reads."""
        super()._save(output_dir, state_dict)
        if output_dir is not None and self.args.should_save:
            Path(output_dir, TRAINING_ARGS_NAME).unlink(missing_ok=True)

    def load_held_out_losses(self, step: int) -> None:
        """On rank 0 read an earlier attempt's held-out losses up to the resumed step; with step 0 do nothing.

        Raises TrainingError: the file cannot be read.
        """
        if not step or not self.is_world_process_zero():
            return
        try:
            check_regular(self._losses_file)
            with np.load(self._losses_file) as file:
                self.held_out_losses = {int(name): file[name] for name in file.files if int(name) <= step}
        except (OSError, ValueError, BadZipFile) as error:
            raise TrainingError(f"{self._losses_file}: cannot be read ({error}): --fresh starts anew") from None

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Measure the held-out loss, the mean over tokens; all ranks must call this together."""
        self._heartbeat.at(self.state.global_step, "validation")
        if self.before_evaluation is not None:
            self.before_evaluation()
        losses = self._losses()
        self.held_out_losses[self.state.global_step] = losses
        if self.is_world_process_zero():
            kept: dict[str, Any] = {str(step): each for step, each in self.held_out_losses.items()}
            with whole_file(self._losses_file) as file:
                np.savez(file, **kept)
        metrics = {f"{metric_key_prefix}_loss": float(losses[:, 0].sum() / losses[:, 1].sum())}
        self.log(dict(metrics))
        # Else the Trainer would evaluate once more at the end of the epoch.
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    @torch.no_grad()
    def _losses(self) -> np.ndarray:
        """Return each held-out example's sum of losses and number of tokens, float64 [examples, 2]."""
        model, world, rank = self.model_wrapped, self.args.world_size, self.args.process_index
        model.eval()
        count, micro = len(self._held_out), self.args.per_device_eval_batch_size
        # All ranks take equally many: under ZeRO-3 each forward pass is a collective. The surplus is dropped below.
        each = -(-count // world)
        mine = [self._held_out[(rank * each + place) % count] for place in range(each)]
        found = []
        for begin in range(0, each, micro):
            self._heartbeat.at(
                self.state.global_step, f"validation, micro-batch {begin // micro + 1} of {-(-each // micro)}"
            )
            batch = self._prepare_inputs(self.data_collator(mine[begin : begin + micro]))
            outputs = model(**batch, use_cache=False, fused_lm_head=True)
            sums = [-outputs.log_probs.float().sum(1), outputs.label_mask.float().sum(1)]
            found.append(torch.stack(sums, 1))
        gathered: torch.Tensor = self.accelerator.gather(torch.cat(found))
        return gathered[:count].cpu().numpy().astype(np.float64)


class _LossBefore(TrainerCallback):
    """Measures the held-out loss before the first step."""

    def __init__(self, trainer: Tuner) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.global_step:
            self._trainer.evaluate()
