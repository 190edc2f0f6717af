"""Write steps and validations to `steps.jsonl`, TensorBoard and other sinks, and keep what the record needs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from efficientbench.basics.counted import number_of
from efficientbench.config.schema import RunConfig
from efficientbench.metrics.formulas.definitions import (
    bits_per_byte,
    load_imbalance,
    perplexity,
    ratio_standard_error,
)
from efficientbench.metrics.records.facts import Quality, Validation
from efficientbench.metrics.records.record_parts import MOST_MISMATCHES, QualityPoint, Rechecks
from efficientbench.metrics.records.sinks.registry import Run, Sinks, asked_of, in_use, step_scalars
from efficientbench.metrics.records.sinks.steplog import StepLog, keep_lost, read_steps
from efficientbench.metrics.records.sinks.tensorboard import cut_logs
from efficientbench.running.output_folder import OutputFolder
from efficientbench.training.checkpoints.manifest import Manifest
from efficientbench.training.events import (
    CheckpointEnded,
    Event,
    RecheckEnded,
    StepEnded,
    TrainingEnded,
    ValidationEnded,
)
from efficientbench.worker.listeners.monitoring import Measure

LARGEST_LOSS = 700.0
"""Nats; the perplexity of a larger loss overflows a float."""

TRAIN_LOSS_STEPS = 10
"""The record's training loss is the mean over this many last steps."""


class Recorder:
    """Writes rank 0's files during training."""

    def __init__(
        self,
        config: RunConfig,
        folder: OutputFolder,
        measure: Measure,
        manifest: Manifest | None = None,
        begin_s: float | None = None,
        lost_s: float = 0.0,
    ) -> None:
        """Open the files.

        Args:
            config: the run's configuration.
            folder: the run's folder.
            measure: knows the step times.
            manifest: the manifest of the checkpoint to resume from; lines of later steps are cut off.
            begin_s: when this attempt began, on the monotonic clock; None: now.
            lost_s: how long earlier attempts worked after that checkpoint.
        """
        self.measure = measure
        self.lost: list[str] = []
        """Damaged parts of earlier attempts' files, which were cut off."""
        self._written: set[int] = set()
        """Steps after which an earlier attempt has validated."""
        self.warmup_steps = config.measurement.warmup_steps + (manifest.step if manifest is not None else 0)
        if manifest is not None:
            self.lost = cut_logs(folder.steps, folder.tensorboard, manifest.step, manifest.progress["tokens"])
            lines = read_steps(folder.steps) if folder.steps.exists() else []
            self._written = {line.get("step", 0) for line in lines if line["kind"] == "evaluation"}
        self.steps = StepLog(folder.steps)
        if manifest is not None:
            keep_lost(self.steps, manifest.step, lost_s, manifest.progress["elapsed_s"])
        resumed_after = manifest.step if manifest is not None else 0
        told = Run(folder.path, config.name, {**config.model_dump(mode="json"), "resumed_after": resumed_after})
        self.sinks = Sinks({"tensorboard": str(folder.tensorboard), **asked_of(config)}, told)
        self.losses: deque[float] = deque(maxlen=TRAIN_LOSS_STEPS)
        self.validation: ValidationEnded | None = None
        self.validations: list[Validation] = []
        self.interruptions: dict[int, str] = {}
        """Step → what came between it and the step before."""
        self.stopped = False
        self._writing = False
        self.moe, self._objective = config.model.moe, config.training.objective
        self.auxiliary_losses: deque[float] = deque(maxlen=TRAIN_LOSS_STEPS)
        self.tokens_per_expert: tuple[tuple[int, ...], ...] = ()
        """[layers][experts], over the measured steps."""
        self._begin_s = (time.monotonic() if begin_s is None else begin_s) - lost_s
        self._step_number = 0
        self.tokens = 0
        """Tokens trained on since the start of the run."""
        self._measured_tokens = self._measured_supervised = 0
        self.rechecks = Rechecks(0, 0, [])
        self.resumed: list[int] = []
        """Steps after which the run resumed from a checkpoint."""
        if manifest is not None:
            self._resume(manifest)

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepEnded):
            self._step(event)
        elif isinstance(event, ValidationEnded):
            self._validation(event)
        elif isinstance(event, RecheckEnded):
            self._recheck(event)
        elif isinstance(event, CheckpointEnded):
            self.interruptions[event.step + 1] = "the first step after a checkpoint"
            self._writing = event.still_writing
        elif isinstance(event, TrainingEnded):
            self.stopped = event.stopped

    def progress(self) -> dict[str, Any]:
        """Return the state that the next attempt resumes from, as plain data for the checkpoint."""
        return {
            "tokens": self.tokens,
            "elapsed_s": time.monotonic() - self._begin_s,
            "losses": list(self.losses),
            "auxiliary_losses": list(self.auxiliary_losses),
            "validation": asdict(self.validation) if self.validation is not None else None,
            "validations": [asdict(validation) for validation in self.validations],
            "resumed": self.resumed,
            "lost": self.lost,
            "rechecks": asdict(self.rechecks),
        }

    def _resume(self, manifest: Manifest) -> None:
        """Restore what `progress` returned for the checkpoint."""
        kept = manifest.progress
        self._step_number, self.tokens = manifest.step, kept["tokens"]
        self._begin_s -= kept["elapsed_s"]
        self.losses.extend(kept["losses"])
        self.auxiliary_losses.extend(kept["auxiliary_losses"])
        if kept["validation"] is not None:
            values = kept["validation"]
            lists = {name: tuple(values[name]) for name in ("document_losses", "document_tokens")}
            self.validation = ValidationEnded(**{**values, **lists})
        # The checkpoint has no measurements of earlier attempts: their steps are charged like the warm-up's.
        self.validations = [Validation(**{**each, "measured_tokens": 0, "windows": 0}) for each in kept["validations"]]
        # A branch begins after its trunk's steps, and resumes nothing.
        self.resumed = [*kept["resumed"], manifest.step] if "resumed" in kept else []
        self.lost = [*kept.get("lost", []), *self.lost]
        self.rechecks = TypeAdapter(Rechecks).validate_python(kept.get("rechecks", asdict(self.rechecks)))

    def quality(self) -> Quality:
        """Return what the model has learned, for the record."""
        reasons = {}
        validation = self.validation
        if validation is None:
            reasons["validation_loss"] = "the run ended before a validation"
        elif validation.step < self._step_number:
            later = number_of(self._step_number - validation.step, "step")
            reasons["validation_loss"] = f"the run was stopped {later} after its last validation"
            validation = None
        elif len(validation.document_losses) < 2:
            reasons["validation_loss_se"] = "a single document of validation text has no spread"
        if validation is not None and validation.utf8_bytes is None:
            reasons["validation_bytes"] = "the tokenizer does not say how many bytes a token has"
        if self.moe is not None:
            reasons["tokens_per_expert"] = "no step was measured"
            reasons["auxiliary_loss"] = "no step was trained"
            if not self.moe.balancing(self._objective):
                why = "model.moe.auxiliary_loss is 0" if self.moe.auxiliary_loss == 0 else "rewards alone move weights"
                reasons["auxiliary_loss"] = f"{why}: the run trained without it"
        return Quality(
            train_loss=_mean(self.losses),
            validation_loss=validation.loss if validation else None,
            validation_loss_se=_loss_se(validation) if validation else None,
            validation_loss_se_values=len(validation.document_losses) if validation else None,
            validation_tokens=validation.tokens if validation else None,
            validation_bytes=validation.utf8_bytes if validation else None,
            auxiliary_loss=_mean(self.auxiliary_losses),
            tokens_per_expert=self.tokens_per_expert,
            validation_documents=validation.document_losses if validation else (),
            validation_text=validation.text if validation else None,
            supervised_tokens=self._measured_supervised,
            reasons=reasons,
        )

    def write_curve(self, curve: Sequence[QualityPoint]) -> None:
        """Write the quality curve: what training had cost at each validation, which takes all ranks' measurements."""
        for point in curve:
            self.steps.write("quality", asdict(point))

    def close(self) -> None:
        """Close the files and sinks."""
        self.steps.close()
        self.sinks.close()

    def _step(self, event: StepEnded) -> None:
        self._step_number = event.step
        if self._writing:
            self.interruptions.setdefault(event.step, "a checkpoint was being written")
        if event.non_finite is None:
            self.losses.append(event.loss)
        self.tokens += event.tokens
        if event.step > self.warmup_steps:
            self._measured_tokens += event.tokens
            self._measured_supervised += event.supervised_tokens
        step_time_s = self.measure.step_time_s
        samples = self.measure.monitor.latest_samples()
        memory_used_bytes, power_w = in_use(samples)
        self.steps.write(
            "step",
            {
                "step": event.step,
                "measured": event.step > self.warmup_steps,
                "loss": event.loss,
                "learning_rate": event.learning_rate,
                "grad_norm": event.gradient_norm,
                "skipped": event.skipped,
                "tokens": event.tokens,
                "tokens_total": self.tokens,
                "supervised_tokens": event.supervised_tokens,
                "step_time_s": step_time_s,
                "elapsed_s": time.monotonic() - self._begin_s,
                "memory_used_bytes": memory_used_bytes,
                "power_w": power_w,
                **self._routing(event),
                **({"non_finite": event.non_finite} if event.non_finite is not None else {}),
            },
        )
        self.sinks.scalars(
            event.step,
            {
                "train/loss": event.loss,
                "train/learning_rate": event.learning_rate,
                "train/grad_norm": event.gradient_norm,
                "train/tokens": self.tokens,
                **step_scalars(step_time_s, event.tokens, samples),
            },
        )
        self.sinks.by_tokens(self.tokens, "train_loss", event.loss)

    def _routing(self, event: StepEnded) -> dict[str, Any]:
        """Count and return what the routers of a mixture of experts did; {} for a model without experts."""
        routing = event.routing
        if routing is None:
            return {}
        if routing.auxiliary_loss is not None and event.non_finite is None:
            self.auxiliary_losses.append(routing.auxiliary_loss)
        if event.step > self.warmup_steps:
            before = self.tokens_per_expert or [(0,) * len(layer) for layer in routing.tokens_per_expert]
            self.tokens_per_expert = tuple(
                tuple(map(sum, zip(*layers, strict=True)))
                for layers in zip(before, routing.tokens_per_expert, strict=True)
            )
        imbalance = load_imbalance(routing.tokens_per_expert)
        values = {"auxiliary_loss": routing.auxiliary_loss, "load_imbalance": sum(imbalance) / len(imbalance)}
        by_layer = {f"load_imbalance_layer_{layer}": value for layer, value in enumerate(imbalance, start=1)}
        tagged = {f"experts/{name}": value for name, value in (values | by_layer).items()}
        self.sinks.scalars(event.step, tagged)
        return {**values, "load_imbalance_by_layer": imbalance, "tokens_per_expert": routing.tokens_per_expert}

    def _recheck(self, event: RecheckEnded) -> None:
        self.interruptions[event.step + 1] = "the first step after a recheck"
        before = self.rechecks
        mismatches = [*before.mismatches, *event.mismatches][:MOST_MISMATCHES]
        self.rechecks = Rechecks(before.count + 1, before.mismatched + bool(event.mismatches), mismatches)

    def _validation(self, event: ValidationEnded) -> None:
        self.validation = event
        self.interruptions[event.step + 1] = "the first step after an evaluation"
        # A resumed attempt may repeat a validation that the checkpoint already has: the new one replaces it.
        self.validations = [validation for validation in self.validations if validation.step < event.step]
        loss_se = _loss_se(event)
        windows = self.measure.monitor.closed_windows()
        self.validations.append(
            Validation(
                event.step, self.tokens, self._measured_tokens, event.loss, loss_se, windows, len(event.document_losses)
            )
        )
        if event.step not in self._written:
            self._write_validation(event, loss_se)

    def _write_validation(self, event: ValidationEnded, loss_se: float | None) -> None:
        size = event.utf8_bytes
        values = {
            "loss": event.loss,
            # A diverged run has no perplexity: it would overflow.
            "perplexity": perplexity(event.loss) if event.loss < LARGEST_LOSS else None,
            "bits_per_byte": bits_per_byte(event.loss, event.tokens, size) if size else None,
        }
        self.steps.write(
            "evaluation",
            {
                "step": event.step,
                **values,
                "loss_se": loss_se,
                "tokens": event.tokens,
                "tokens_total": self.tokens,
                "elapsed_s": time.monotonic() - self._begin_s,
            },
        )
        self.sinks.scalars(event.step, {f"validation/{name}": value for name, value in values.items()})
        self.sinks.by_tokens(self.tokens, "validation_loss", event.loss)


def _loss_se(validation: ValidationEnded) -> float | None:
    return ratio_standard_error(validation.document_losses, validation.document_tokens)


def _mean(values: Collection[float]) -> float | None:
    return sum(values) / len(values) if values else None
