"""What a rank trains with: its part of the model, the optimizer, the batches and the checkpoints.

To be imported once the device is prepared, since megatron must find it so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from efficientbench.data_tools.manifest import Corpus
from efficientbench.model.gpt import build_stages
from efficientbench.running.corpora import load_corpora
from efficientbench.running.job import Job
from efficientbench.training.batches import Batches, Vocabulary
from efficientbench.training.checkpoints.held import held_parameters
from efficientbench.training.checkpoints.manager import Checkpoints
from efficientbench.training.events import Listener
from efficientbench.training.optimizer import build_optimizer, wrap_data_parallel
from efficientbench.training.trainer import Trainer


def build_trainer(
    job: Job,
    device: torch.device,
    listeners: list[Listener],
    progress: Callable[[], dict[str, Any]] = dict,
    resume: Path | None = None,
) -> Trainer:
    """Model, optimizer and batches of this rank. All ranks must call it together.

    Args:
        job, device, listeners: of this rank.
        progress: what the listeners want to find in a checkpoint.
        resume: the checkpoint to go on from.
    """
    config, corpora = job.config, load_corpora(job)
    fingerprints = {f"fingerprint {number}": corpus.fingerprint for number, corpus in enumerate(corpora)}
    # Of one tokenizer all, which the parent process has seen to.
    vocabulary = Vocabulary(corpora[0].vocab_size, corpora[0].eod_id, fingerprints)
    batches = Batches(config, job.budget.steps, [corpus.prefix for corpus in corpora], vocabulary, device)
    models = build_stages(config, device)
    stages = [wrap_data_parallel(model, config) for model in models]
    optimizer = build_optimizer(stages, config)
    checkpoints = Checkpoints(
        config,
        job.layout,
        job.budget.steps,
        [corpus.fingerprint for corpus in corpora],
        job.output,
        held_parameters(models, config.model),
        optimizer,
        progress,
    )
    before = checkpoints.restore(resume) if resume is not None else None
    token_bytes = _token_bytes(corpora[0], device)
    steps = job.budget.steps
    return Trainer(config, steps, stages, optimizer, batches, listeners, token_bytes, checkpoints, before)


def _token_bytes(corpus: Corpus, device: torch.device) -> torch.Tensor | None:
    """[V] int64, UTF-8 bytes of each token; None where the tokenizer does not tell."""
    if corpus.token_bytes_path is None:
        return None
    return torch.from_numpy(np.load(corpus.token_bytes_path).astype(np.int64)).to(device)
