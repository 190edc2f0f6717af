"""Fine-tuning: a run from its examples to its job, for the parent process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import ConfigError
from efficientbench.basics.language import in_users_language
from efficientbench.devices.base import Device
from efficientbench.finetuning.base_model import find_model
from efficientbench.finetuning.complete import is_complete, trained_differently
from efficientbench.finetuning.config import SEEDS, FinetuneConfig
from efficientbench.finetuning.examples.examples import write_examples
from efficientbench.finetuning.job import TuningJob
from efficientbench.finetuning.prepare import Prepared, prepare
from efficientbench.finetuning.record import described
from efficientbench.metrics.records.record import RunRecord
from efficientbench.running.kind import Kind, Site, set_for_ranks
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.resume import newest_intact
from efficientbench.training.checkpoints.manifest import MANIFEST, complete, read_manifest


@dataclass(frozen=True)
class PlannedTuning:
    """A fine-tuning on its devices."""

    config: FinetuneConfig
    site: Site
    model: str
    """The folder or hub id of the base model."""
    world: int
    """The number of ranks of all nodes."""


@dataclass(frozen=True)
class PreparedTuning:
    """A planned fine-tuning with its examples, whose order and number of steps follow from them."""

    plan: PlannedTuning
    examples: Prepared


class FineTuning(Kind[FinetuneConfig, PlannedTuning, PreparedTuning, TuningJob]):
    """Fine-tuning of a transformers model."""

    worker = "efficientbench.finetuning.rank"
    seeds = SEEDS

    def plan(self, config: FinetuneConfig, site: Site) -> PlannedTuning:
        """Return the run with its base model and its number of ranks."""
        device = site.device
        set_for_ranks(device.environment(1))
        if device.type == "cpu":
            # Else DeepSpeed would warn in this process, too, that it finds no accelerator.
            os.environ["DS_ACCELERATOR"] = "cpu"
        device.check(config.training.dtype)
        if device.type == "cpu" and config.training.dtype == "bf16" and config.zero.stage:
            raise ConfigError(
                "training.dtype: transformers refuses bf16 with DeepSpeed on CPUs: take fp32, or zero.stage=0"
            )
        world = site.nodes * (config.cpu_ranks if device.memory_capacity_bytes() is None else device.count())
        config.accumulation(world)
        return PlannedTuning(config, site, find_model(config.model, Path(config.cache)), world)

    def prepare(self, planned: PlannedTuning) -> PreparedTuning:
        """Read, tokenize and order the examples, and count the run's steps."""
        prepared = PreparedTuning(planned, prepare(planned.config, planned.model))
        if planned.site.is_first:
            _announce(prepared)
        return prepared

    def usable(self, prepared: PreparedTuning, folder: OutputFolder) -> Path | None:
        """Return the newest intact checkpoint of an unfinished attempt at this run; None if there is none.

        Raises ConfigError: the checkpoint is of another configuration or other examples, or of another number of ranks;
            or all checkpoints are of a version that wrote no manifests.
        """
        found = complete(folder.path)
        # An update of the program must not make a training start anew unasked.
        if found and not any(os.path.lexists(each / MANIFEST) for each in found):
            raise ConfigError(
                f"{found[-1]}: has no {MANIFEST}, as checkpoints of an earlier version, from which this one does not "
                "resume: --fresh starts anew, label=NAME takes another folder"
            )
        newest = newest_intact(folder)
        if newest is None:
            return None
        earlier, world = read_manifest(newest), prepared.plan.world
        if (ranks := earlier.layout.get("world")) != world:
            theirs = number_of(ranks, "rank") if isinstance(ranks, int) else "a training"
            raise ConfigError(
                f"{folder.path} holds checkpoints of {theirs}, and this run has {world}: start as many, because each "
                "keeps its part of the optimizer, or --fresh starts anew"
            )
        differing = trained_differently(earlier.config, prepared.plan.config)
        if not differing and earlier.data != [prepared.examples.fingerprint]:
            differing = ["its examples"]
        if differing:
            raise ConfigError(
                f"{folder.path} holds checkpoints of a run that differs in {', '.join(differing)}: --fresh starts "
                "anew, label=NAME takes another folder"
            )
        return newest

    def is_same(self, prepared: PreparedTuning, earlier: Mapping[str, Any]) -> bool:
        return not trained_differently(earlier, prepared.plan.config)

    def job(self, prepared: PreparedTuning, folder: OutputFolder, node: int, resume: Path | None) -> TuningJob:
        """Write the node's examples, and return its job."""
        plan, found = prepared.plan, prepared.examples
        examples = folder.path / ("examples.npz" if node == 0 else f"examples_node{node}.npz")
        write_examples(examples, found.train, found.held_out, found.order.order, found.held_out_levels)
        return TuningJob(
            plan.config,
            folder.path,
            plan.site.nodes,
            plan.world,
            plan.model,
            examples,
            found.fingerprint,
            found.steps,
            found.warmup,
            found.order.record,
            found.data,
            resume,
            found.held_out_too_long,
            found.unusable,
        )

    def described(self, job: TuningJob, device: Device, nodes: int) -> dict[str, Any]:
        return described(job, device)

    def is_complete(self, config: FinetuneConfig, site: Site) -> bool:
        return is_complete(site.folder, config, site.device.names()[0])

    def results(self, record: RunRecord, folder: OutputFolder) -> list[str]:
        """Return the held-out losses, and where what was learned lies."""
        lines = []
        if held_out := record.finetuning.get("held_out"):
            # A stopped run has trained on since its last validation, or has none but the one before the first step.
            first, *later = [f"{point['loss']:.4f}" for point in held_out]
            after = f", {later[-1]} after {number_of(held_out[-1]['step'], 'step')}" if later else ""
            lines.append(f"held-out loss {first} before{after}")
        saved = [folder.path / name for name in ("adapter", "model")]
        return lines + [f"{path.name:<12} {path}" for path in saved if path.is_dir()]


def _announce(tuning: PreparedTuning) -> None:
    plan, config, prepared = tuning.plan, tuning.plan.config, tuning.examples
    lines = [
        f"{config.name}: {plan.model}, {len(prepared.train):,} examples, {len(prepared.held_out):,} held out, "
        f"{number_of(prepared.steps, 'step')} of {config.training.global_batch_size}, {config.training.dtype}",
        f"{number_of(plan.world, 'rank')} on {plan.site.device.names()[0]}, ZeRO-{config.zero.stage}; "
        f"order: {prepared.order.record.used}",
    ]
    for kind, count in (("", prepared.data.too_long), ("held-out ", prepared.held_out_too_long)):
        if count:
            treated = f"data.too_long={config.data.too_long}"
            lines.append(
                f"{number_of(count, f'{kind}example')} of more than {config.data.max_length:,} tokens ({treated})"
            )
    for reason, count in sorted(prepared.unusable.items()):
        lines.append(f"warning: {number_of(count, 'row')} left out (data.unusable=drop): {reason}")
    lines += [f"warning: {warning}" for warning in prepared.order.warnings]
    print("\n".join(map(in_users_language, lines)), flush=True)
