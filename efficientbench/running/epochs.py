"""The length of a run in epochs: the optimizer steps that read its text `training.epochs` times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from efficientbench.basics.errors import ConfigError
from efficientbench.config.budget import Budget
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.manifest import Corpus
from efficientbench.data_tools.tokens.splitting import SPLITS, split_documents
from efficientbench.planning.plan import Plan
from efficientbench.training.data.packing import packed_epoch
from efficientbench.training.reinforcement.questions import Questions

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
    samples = budget.steps * training.global_batch_size
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
