"""Fine-tuning: a run from its examples to its job, for the parent process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import ConfigError
from efficientbench.devices.base import Device
from efficientbench.finetuning.base_model import find_model
from efficientbench.finetuning.complete import is_complete, trains_the_same
from efficientbench.finetuning.config import SEEDS, FinetuneConfig
from efficientbench.finetuning.examples.examples import write_examples
from efficientbench.finetuning.job import TuningJob
from efficientbench.finetuning.prepare import Prepared, prepare
from efficientbench.finetuning.record import described
from efficientbench.metrics.records.record import RunRecord
from efficientbench.running.kind import Asked, Kind, ask, set_for_ranks
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.parent import perform
from efficientbench.running.resume import newest_usable
from efficientbench.training.checkpoints.manifest import MANIFEST, complete, read_manifest


def finetune(config: FinetuneConfig, mode: str, fresh: bool = False) -> int:
    """Train, measure and record `config`; return the exit code. Arguments: as `ask`; raises what `perform` raises."""
    return perform(FineTuning(), ask(config, mode, fresh=fresh))


@dataclass(frozen=True)
class PlannedTuning:
    """A fine-tuning with its examples, order and steps, which decide its length."""

    config: FinetuneConfig
    model: str
    """The folder or hub id of the base model."""
    nodes: int
    world: int
    """The number of ranks of all nodes."""
    prepared: Prepared


class FineTuning(Kind[FinetuneConfig, PlannedTuning, PlannedTuning, TuningJob]):
    """Fine-tuning of a transformers model."""

    worker = "efficientbench.finetuning.rank"
    seeds = SEEDS

    def plan(self, asked: Asked[FinetuneConfig]) -> PlannedTuning:
        """Return the run with its examples, tokenized and ordered, before its folder is made."""
        config, device, nodes = asked.config, asked.site.device, asked.site.nodes
        set_for_ranks(device.environment(1))
        if device.type == "cpu":
            # Else DeepSpeed would warn in this process, too, that it finds no accelerator.
            os.environ["DS_ACCELERATOR"] = "cpu"
        device.check(config.training.dtype)
        if device.type == "cpu" and config.training.dtype == "bf16" and config.zero.stage:
            raise ConfigError(
                "training.dtype: transformers refuses bf16 with DeepSpeed on CPUs: take fp32, or zero.stage=0"
            )
        world = nodes * (config.cpu_ranks if device.memory_capacity_bytes() is None else device.count())
        model = find_model(config.model, Path(config.cache))
        planned = PlannedTuning(config, model, nodes, world, prepare(config, model, world))
        if asked.site.is_first:
            _announce(planned, device)
        return planned

    def prepare(self, planned: PlannedTuning) -> PlannedTuning:
        """Return the run: its examples have decided its plan."""
        return planned

    def usable(self, prepared: PlannedTuning, folder: OutputFolder) -> Path | None:
        """Return the newest intact checkpoint of an unfinished attempt at this run; None if there is none.

        Raises ConfigError: the checkpoint is of another configuration or other examples, or of another number of ranks;
            or all checkpoints are of a version that wrote no manifests.
        """
        found = complete(folder.path)
        # An update of the program must not make a training begin anew unasked.
        if found and not any(os.path.lexists(each / MANIFEST) for each in found):
            raise ConfigError(
                f"{found[-1]}: has no {MANIFEST}, as checkpoints of an earlier version, from which this one does not "
                "resume: --fresh begins anew, label=NAME takes another folder"
            )
        newest = newest_usable(folder)
        if newest is None:
            return None
        earlier, world = read_manifest(newest), prepared.world
        if (ranks := earlier.layout.get("world")) != world:
            theirs = number_of(ranks, "rank") if isinstance(ranks, int) else "a training"
            raise ConfigError(
                f"{folder.path} holds checkpoints of {theirs}, and this run has {world}: start as many, because each "
                "keeps its part of the optimizer, or --fresh begins anew"
            )
        same_data = earlier.data == [prepared.prepared.fingerprint]
        if not (same_data and trains_the_same(earlier.config, prepared.config)):
            raise ConfigError(
                f"{folder.path} holds checkpoints of another configuration or of other examples: --fresh begins anew, "
                "label=NAME takes another folder"
            )
        return newest

    def job(self, prepared: PlannedTuning, folder: OutputFolder, node: int, resume: Path | None) -> TuningJob:
        """Write the node's examples, and return its job."""
        found = prepared.prepared
        examples = folder.path / ("examples.npz" if node == 0 else f"examples_node{node}.npz")
        write_examples(examples, found.train, found.held_out, found.order.order, found.held_out_levels)
        return TuningJob(
            prepared.config,
            folder.path,
            prepared.nodes,
            prepared.world,
            prepared.model,
            examples,
            found.fingerprint,
            found.steps,
            found.warmup,
            found.order.record,
            found.data,
            resume,
            found.held_out_too_long,
        )

    def described(self, job: TuningJob, device: Device, nodes: int) -> dict[str, Any]:
        return described(job, device)

    def is_complete(self, asked: Asked[FinetuneConfig]) -> bool:
        return is_complete(asked.site.folder, asked.config, asked.site.device.names()[0])

    def results(self, record: RunRecord, folder: OutputFolder) -> list[str]:
        """Return the held-out losses, and where what was learned lies."""
        lines = []
        if held_out := record.finetuning.get("held_out"):
            lines.append(f"held-out loss {held_out[0]['loss']:.4f} before, {held_out[-1]['loss']:.4f} after")
        saved = [folder.path / name for name in ("adapter", "model")]
        return lines + [f"{path.name:<12} {path}" for path in saved if path.is_dir()]


def _announce(planned: PlannedTuning, device: Device) -> None:
    config, prepared = planned.config, planned.prepared
    print(
        f"{config.name}: {planned.model}, {len(prepared.train):,} examples, {len(prepared.held_out):,} held out, "
        f"{number_of(prepared.steps, 'step')} of {config.training.global_batch_size}, {config.training.dtype}\n"
        f"{number_of(planned.world, 'rank')} on {device.names()[0]}, ZeRO-{config.zero.stage}; "
        f"order: {prepared.order.record.used}"
    )
    for kind, count in (("", prepared.data.too_long), ("held-out ", prepared.held_out_too_long)):
        if count:
            treated = f"data.too_long={config.data.too_long}"
            print(f"{number_of(count, f'{kind}example')} of more than {config.data.max_length:,} tokens ({treated})")
    for warning in prepared.order.warnings:
        print(f"warning: {warning}")
    print(end="", flush=True)
