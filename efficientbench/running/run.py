"""Pretraining, SFT and RL: a run from its plan to its job, for the parent process, and its length in epochs."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from efficientbench.basics.cgroup import memory_limit_bytes
from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import ConfigError
from efficientbench.basics.language import in_users_language
from efficientbench.config.budget import Budget
from efficientbench.config.layout import Layout, check_documents, fit_micro_batch
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.manifest import Corpus
from efficientbench.data_tools.tokens.splitting import SPLITS, split_documents
from efficientbench.devices.base import Device
from efficientbench.planning.fitting import check_fits
from efficientbench.planning.plan import Hardware, Plan, announcement, make_plan, with_kernels
from efficientbench.planning.text import text_budget, text_of
from efficientbench.running.branches import check_branch
from efficientbench.running.corpora import prepare_corpora
from efficientbench.running.identity import described
from efficientbench.running.initialisation import check_tokenizer, initialised
from efficientbench.running.job import Job
from efficientbench.running.kind import Kind, Site, find_site, set_for_ranks
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.parent import perform
from efficientbench.running.resume import complete_record, may_not_resume, usable
from efficientbench.training.data.packing import packed_epoch
from efficientbench.training.reinforcement.questions import Questions


def run(config: RunConfig, mode: str, folder: OutputFolder | None = None, fresh: bool = False) -> int:
    """Train, measure and record `config`; return the exit code. Arguments and errors: as `find_site`, `perform`."""
    return perform(Pretraining(), config, find_site(config, mode, folder), fresh)


@dataclass(frozen=True)
class Tokenized:
    """A planned run with its text."""

    plan: Plan
    """The plan, with the run's steps counted."""
    corpora: list[Corpus]


class Pretraining(Kind[RunConfig, Plan, Tokenized, Job]):
    """Pretraining, SFT and RL of the variants."""

    worker = "efficientbench.worker.rank"

    def varied(self, config: RunConfig) -> str:
        """Return in words what differs between repeats of a configuration."""
        own = "training.seed: the weights"
        seed = config.data.seed
        return f"{own}, and the data order" if seed is None else f"{own}; data.seed={seed} keeps the data order"

    def plan(self, config: RunConfig, site: Site) -> Plan:
        """Return the run's plan on its devices, whose `config` is the run's on every node and in every rank."""
        set_for_ranks(site.device.environment(config.parallel.tp))
        if config.training.deterministic:
            set_for_ranks({name: values[0] for name, values in site.device.deterministic_environment().items()})
        plan = plan_checked(initialised(config, site.folder), site.device, site.nodes)
        # Before the run has a folder; of several nodes, those that wait have to hear of a file that is not there.
        if site.cluster is None:
            text_of(plan)
        lines = announcement(plan, site.device, config.training.micro_batch_size)
        print("\n".join(map(in_users_language, lines)), flush=True)
        return plan

    def prepare(self, planned: Plan) -> Tokenized:
        """Tokenize the text where it is not yet, check it against the plan, and count the run's steps."""
        corpora = prepare_corpora(planned.config)
        check_tokenizer(planned.config, corpora)
        plan = counted(planned, corpora, memory_limit_bytes())
        check_branch(plan.config, plan.budget, [corpus.fingerprint for corpus in corpora])
        found = Tokenized(plan, corpora)
        _announce_data(found)
        return found

    def usable(self, prepared: Tokenized, folder: OutputFolder) -> Path | None:
        return usable(folder, prepared.plan.config, [corpus.fingerprint for corpus in prepared.corpora])

    def is_same(self, prepared: Tokenized, earlier: Mapping[str, Any]) -> bool:
        return not may_not_resume(earlier, prepared.plan.config)

    def job(self, prepared: Tokenized, folder: OutputFolder, node: int, resume: Path | None) -> Job:
        """Return the job; the first node's process copies the tokenizer into the run's folder."""
        plan, corpora = prepared.plan, prepared.corpora
        if node == 0:
            folder.keep_tokenizer(corpora[0].tokenizer_folder)
        manifests = tuple(corpus.manifest.absolute() for corpus in corpora)
        fingerprint = corpora[0].tokenizer_fingerprint
        return Job(
            plan.config, plan.layout, plan.budget, manifests, folder.path, resume, tokenizer_fingerprint=fingerprint
        )

    def described(self, job: Job, device: Device, nodes: int) -> dict[str, Any]:
        return described(job, device, nodes)

    def is_complete(self, config: RunConfig, site: Site) -> bool:
        fitted = plan_on(config, site.device, site.nodes).config.training.micro_batch_size
        return complete_record(site.folder, config, fitted, site.device.names()[0]) is not None


def plan_checked(config: RunConfig, device: Device, nodes: int) -> Plan:
    """Return the plan of a run on this machine's devices, which can do what its configuration asks of them.

    Raises:
        ConfigError: as `plan_on`, or the attention cannot end at document ends on these devices.
        DeviceError: a device cannot be used, or lacks the dtype.
    """
    plan = plan_on(config, device, nodes)
    device.check(plan.config.training.dtype)
    check_documents(plan.config, device.type)
    return plan


def plan_on(config: RunConfig, device: Hardware, nodes: int) -> Plan:
    """Return the plan of a run on this machine's devices.

    The plan's `config` is `config` with its micro-batch fitted to the devices and its kernels chosen for them.

    Raises:
        ConfigError: a layout that cannot work, a budget too small to measure, or a run that cannot fit in memory.
    """
    capacity_bytes = device.memory_capacity_bytes()
    shared = capacity_bytes is None
    if not shared:
        config = fit_micro_batch(config, device.count(), nodes)
    config = with_kernels(config, device)
    layout = Layout.of(config, device.count(), nodes, oversubscribe=shared)
    plan = make_plan(config, layout, device.runtime_bytes)
    check_fits(plan, memory_limit_bytes() if capacity_bytes is None else capacity_bytes, shared)
    return plan


def _announce_data(prepared: Tokenized) -> None:
    plan, corpora = prepared.plan, prepared.corpora
    for weight, corpus in zip(plan.config.data.weights, corpora, strict=True):
        share = f"{weight:.3g} of the samples: " if len(corpora) > 1 else ""
        documents = number_of(corpus.documents, "document")
        print(in_users_language(f"data: {share}{corpus.source}, {documents}, {corpus.tokens:,} tokens"))
    if plan.config.training.epochs is not None:
        print(in_users_language(f"training.epochs={plan.config.training.epochs}: {plan.length}"))
    print(in_users_language(str(text_budget(plan, [corpus.tokens for corpus in corpora]))))
    if plan.config.training.objective == "sft":
        most = plan.config.training.seq_len + 1
        too_long = int((IndexedDocuments(corpora[0].prefix).lengths() > most).sum())
        skipped = f"{too_long:,} with more than {most:,} tokens are skipped"
        print(in_users_language(f"conversations are packed without cutting: {skipped}"))
    sys.stdout.flush()


_ENTRY_BYTES = 24
"""Bytes for a document of an epoch, and for a sample, while Megatron builds the index: 16 of a grid, and copies."""


def counted(plan: Plan, corpora: Sequence[Corpus], memory_bytes: int) -> Plan:
    """Return the plan; where `training.epochs` sets the run's length, with the steps counted from its text.

    Args:
        plan: the run's plan.
        corpora: the run's text.
        memory_bytes: this machine's memory.

    Raises:
        ConfigError: the text has several sources or nothing to train on, is too short to be measured, or is read so
            often that the index of samples does not fit in memory.
    """
    if not plan.budget.counted:
        plan = replace(plan, epoch_steps=epoch_steps(plan.config, corpora))
    _check_length(plan.config, plan.budget, corpora, memory_bytes)
    return plan


def epoch_steps(config: RunConfig, corpora: Sequence[Corpus]) -> int:
    """Return the fewest optimizer steps that read the training text `training.epochs` times, or ask its questions.

    Raises:
        ConfigError: the text has several sources, whose shares make their epochs differ, or yields no sequence.
    """
    training, epochs = config.training, config.training.epochs or 1
    if len(corpora) > 1:
        raise ConfigError(
            f"training.epochs: the {len(corpora)} sources of data.path have different numbers of epochs: set "
            "training.tokens or training.steps"
        )
    prefix = corpora[0].prefix
    cache = Path(config.data.cache).absolute() / SPLITS
    numbers = split_documents([prefix], config.data.split, corpora[0].vocab_size, cache)[0].training
    lengths = IndexedDocuments(prefix).lengths()
    if training.objective == "rl":
        folder = corpora[0].tokenizer_folder
        questions = Questions(config, load_tokenizer(folder), str(folder))
        sequences = epochs * len(questions.asked) * config.rl.samples
    elif training.objective == "sft":
        capacity = training.seq_len + 1
        fitting = numbers[lengths[numbers] <= capacity].tolist()
        packed = (packed_epoch(fitting, lengths, capacity, config.order_seed, epoch) for epoch in range(epochs))
        sequences = sum(map(len, packed))
    else:
        # The last token of the text is only a target.
        sequences = (int(lengths[numbers].sum()) * epochs - 1) // training.seq_len
    if not sequences:
        raise ConfigError(
            f"training.epochs: the training text of {corpora[0].source} does not fill or fit one sequence of "
            f"training.seq_len={training.seq_len}"
        )
    return -(-sequences // training.global_batch_size)


def _check_length(config: RunConfig, budget: Budget, corpora: Sequence[Corpus], memory_bytes: int) -> None:
    """Refuse a run whose index of samples does not fit in memory: Megatron builds it there, epoch by epoch.

    Args:
        config: the run's configuration.
        budget: the run's length.
        corpora: the run's text.
        memory_bytes: this machine's memory.

    Raises:
        ConfigError: the index does not fit; the message has the sizes.
    """
    training, data = config.training, config.data
    samples = config.order_samples(budget.steps)
    index_bytes = 0.0
    for weight, corpus in zip(data.weights, corpora, strict=True):
        tokens = samples * weight * training.seq_len
        epochs = math.ceil(tokens / (corpus.tokens * data.split[0] / sum(data.split)))
        index_bytes += _ENTRY_BYTES * (epochs * corpus.documents + samples * weight)
    if index_bytes > memory_bytes:
        raise ConfigError(
            f"training.steps: the order of {samples:,} sequences over {corpora[0].documents:,} documents takes about "
            f"{index_bytes / 1e9:,.3g} GB of memory, and this machine has {memory_bytes / 1e9:,.3g} GB: train on fewer "
            "tokens, or on text that does not repeat so often"
        )
