"""Pretraining, SFT and RL: a run from its plan to its job, for the parent process."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efficientbench.basics.cgroup import memory_limit_bytes
from efficientbench.basics.counted import number_of
from efficientbench.config.layout import Layout, check_documents, fit_micro_batch
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.manifest import Corpus
from efficientbench.devices.base import Device
from efficientbench.planning.fitting import check_fits
from efficientbench.planning.plan import Hardware, Plan, announcement, make_plan, text_budget, with_kernels
from efficientbench.running.corpora import prepare_corpora
from efficientbench.running.epochs import counted
from efficientbench.running.identity import described
from efficientbench.running.initialisation import check_tokenizer, initialised
from efficientbench.running.job import Job
from efficientbench.running.kind import Asked, Kind, ask, set_for_ranks
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.parent import perform
from efficientbench.running.resume import complete_record, usable


def run(config: RunConfig, mode: str, folder: OutputFolder | None = None, fresh: bool = False) -> int:
    """Train, measure and record `config`; return the exit code. Arguments: as `ask`; raises what `perform` raises."""
    return perform(Pretraining(), ask(config, mode, folder, fresh))


@dataclass(frozen=True)
class Tokenized:
    """A planned run with its text."""

    plan: Plan
    """The plan, with the run's steps counted."""
    corpora: list[Corpus]


class Pretraining(Kind[RunConfig, Plan, Tokenized, Job]):
    """Pretraining, SFT and RL of the variants."""

    worker = "efficientbench.worker.rank"

    def plan(self, asked: Asked[RunConfig]) -> Plan:
        """Return the run's plan on its devices, whose `config` is the run's on every node and in every rank."""
        config, site = asked.config, asked.site
        set_for_ranks(site.device.environment(config.parallel.tp))
        if config.training.deterministic:
            set_for_ranks({name: values[0] for name, values in site.device.deterministic_environment().items()})
        plan = plan_on(initialised(config, site.folder), site.device, site.nodes)
        site.device.check(plan.config.training.dtype)
        check_documents(plan.config, site.device.type)
        print("\n".join(announcement(plan, site.device, config.training.micro_batch_size)), flush=True)
        return plan

    def prepare(self, planned: Plan) -> Tokenized:
        """Tokenize the text where it is not yet, check it against the plan, and count the run's steps."""
        corpora = prepare_corpora(planned.config)
        check_tokenizer(planned.config, corpora)
        plan = counted(planned, corpora, memory_limit_bytes())
        found = Tokenized(plan, corpora)
        _announce_data(found)
        return found

    def usable(self, prepared: Tokenized, folder: OutputFolder) -> Path | None:
        return usable(folder, prepared.plan.config, [corpus.fingerprint for corpus in prepared.corpora])

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

    def is_complete(self, asked: Asked[RunConfig]) -> bool:
        config, site = asked.config, asked.site
        fitted = plan_on(config, site.device, site.nodes).config.training.micro_batch_size
        return complete_record(site.folder, config, fitted, site.device.names()[0]) is not None


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
        print(f"data: {share}{corpus.source}, {number_of(corpus.documents, 'document')}, {corpus.tokens:,} tokens")
    if plan.config.training.epochs is not None:
        print(f"training.epochs={plan.config.training.epochs}: {plan.length}")
    print(text_budget(plan, [corpus.tokens for corpus in corpora]))
    if plan.config.training.objective == "sft":
        most = plan.config.training.seq_len + 1
        too_long = int((IndexedDocuments(corpora[0].prefix).lengths() > most).sum())
        print(f"conversations are packed without cutting: {too_long:,} with more than {most:,} tokens are skipped")
    sys.stdout.flush()
