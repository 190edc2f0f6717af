"""Build what a rank trains with: its part of the model, the optimizer, the batches and the checkpoints.

Import this only after `Device.prepare`: importing it imports Megatron, which asks for the device at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from efficientbench.data_tools.tokens.manifest import Corpus
from efficientbench.model.gpt import build_stages
from efficientbench.running.corpora import block_readers, load_corpora
from efficientbench.running.job import Job
from efficientbench.training.checkpoints.manager import Checkpoints
from efficientbench.training.checkpoints.shards import sharded_parameters
from efficientbench.training.data.batches import Batches
from efficientbench.training.data.sample_index import Vocabulary
from efficientbench.training.events import Listener
from efficientbench.training.reinforcement.advantages import RolloutBatches
from efficientbench.training.time_limit import TimeLimit
from efficientbench.training.trainer import Trainer
from efficientbench.training.update.optimizer import build_optimizer, wrap_data_parallel


def build_trainer(
    job: Job,
    device: torch.device,
    listeners: list[Listener],
    progress: Callable[[], dict[str, Any]] = dict,
    resume: Path | None = None,
) -> Trainer:
    """Return the trainer of this rank; all ranks must call this together.

    Args:
        job: the run's job.
        device: this rank's device.
        listeners: the listeners to this rank's training events, in the order in which they are called.
        progress: returns the listeners' state for each checkpoint.
        resume: the checkpoint to resume from; None: start at step 1.
    """
    config, corpora = job.config, load_corpora(job)
    fingerprints = {f"fingerprint {number}": corpus.fingerprint for number, corpus in enumerate(corpora)}
    # The parent process has checked that all corpora have one tokenizer: the first one's is theirs.
    vocabulary = Vocabulary(corpora[0].vocab_size, corpora[0].eod_id, fingerprints)
    prefixes, blocks = [corpus.prefix for corpus in corpora], block_readers(corpora)
    kind = RolloutBatches if config.training.objective == "rl" else Batches
    batches = kind(config, job.budget.steps, prefixes, vocabulary, device, blocks)
    models = build_stages(config, device)
    stages = [wrap_data_parallel(model, config) for model in models]
    optimizer = build_optimizer(stages, config)
    checkpoints = Checkpoints(
        config,
        job.layout,
        job.budget.steps,
        [corpus.fingerprint for corpus in corpora],
        job.output,
        sharded_parameters(models, config.model),
        optimizer,
        progress,
    )
    token_bytes = _token_bytes(corpora[0], device)
    steps, limit_s = job.budget.steps, job.budget.time_limit_s
    limit = None if limit_s is None else TimeLimit(limit_s, config.measurement)
    return Trainer(config, steps, stages, optimizer, batches, listeners, token_bytes, checkpoints, resume, limit)


def _token_bytes(corpus: Corpus, device: torch.device) -> torch.Tensor | None:
    """Return the UTF-8 bytes of each token as [V] int64; None where the corpus does not have them."""
    if corpus.token_bytes_path is None:
        return None
    return torch.from_numpy(np.load(corpus.token_bytes_path).astype(np.int64)).to(device)
