"""Write the base model's loss on each example as the difficulty that a curriculum reads."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from efficientbench.basics.errors import ConfigError
from efficientbench.devices.registry import find_device
from efficientbench.finetuning.base_model import find_model, load_tokenizer
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.examples.examples import Examples, tokenized
from efficientbench.finetuning.examples.rows import read_rows
from efficientbench.metrics.files import write_whole
from efficientbench.running.failures import ran_out_of_memory
from efficientbench.running.kind import set_for_ranks


def write_losses(config: FinetuneConfig, file: Path) -> int:
    """Write each example with the base model's mean loss on its answers, in nats; return the number of rows written.

    A row is {messages, <curriculum.field>}. Skip the examples that the training drops as too long or unusable.

    Args:
        config: the fine-tuning's configuration; a forward pass computes one micro-batch.
        file: the new JSONL file.

    Raises:
        ConfigError, DeviceError, DataError, MetricsError: the model, the device, the examples or the file cannot be
            used.
    """
    if file.suffix != ".jsonl" or file.exists():
        reason = "is there already" if file.exists() else "does not end in .jsonl"
        raise ConfigError(f"{file}: {reason}: name a new file of JSON lines")
    device = find_device(config.device)
    set_for_ranks(device.environment(1))
    device.check(config.training.dtype)
    base = find_model(config.model, Path(config.cache))
    tokenizer = load_tokenizer(base)
    dropped: Counter[str] | None = Counter() if config.data.unusable == "drop" else None
    rows = read_rows(config.data.path, config.curriculum.field, config.curriculum.levels, dropped)
    examples, kept, _ = tokenized(rows, tokenizer, config.data, dropped)
    from transformers import AutoModelForCausalLM, logging

    logging.disable_progress_bar()
    dtype = torch.bfloat16 if config.training.dtype == "bf16" else torch.float32
    try:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
        model = model.to(torch.device("cpu") if device.type == "cpu" else device.prepare(0)).eval()
        losses = base_losses(model, examples, config.training.micro_batch_size)
    except Exception as error:
        if ran_out_of_memory(error):
            raise ConfigError(
                f"{base}: one device has too little memory for the whole model and {config.training.micro_batch_size} "
                "examples: a smaller training.micro_batch_size, data.max_length or model would help"
            ) from None
        raise
    lines = [
        json.dumps({"messages": rows[number].messages, config.curriculum.field: loss}, ensure_ascii=False)
        for number, loss in zip(kept, losses.tolist(), strict=True)
    ]
    write_whole(file, "".join(f"{line}\n" for line in lines))
    return len(lines)


@torch.no_grad()
def base_losses(model: Any, examples: Examples, at_once: int) -> np.ndarray:
    """Return the mean loss of each example's learned tokens, float64 [examples].

    Args:
        model: the base model, in evaluation mode.
        examples: the examples, each with learned tokens.
        at_once: examples per forward pass.
    """
    losses = np.empty(len(examples))
    # The longest first, so that a lack of memory shows at once; sorted, so that padding is small.
    ranked = np.argsort(-examples.lengths, kind="stable")
    for begin in range(0, len(ranked), at_once):
        own = ranked[begin : begin + at_once]
        length = int(examples.lengths[own[0]])
        tokens, targets, present = (torch.full((len(own), length), fill) for fill in (0, -100, 0))
        for place, number in enumerate(own.tolist()):
            ids, learned = examples[number]
            tokens[place, : len(ids)] = torch.from_numpy(ids.astype(np.int64))
            targets[place, : len(ids)] = torch.from_numpy(np.where(learned, ids, -100).astype(np.int64))
            present[place, : len(ids)] = 1
        logits = model(input_ids=tokens.to(model.device), attention_mask=present.to(model.device)).logits
        following = targets[:, 1:].to(model.device)
        # cross_entropy takes the logits as [B, V, T - 1].
        each = torch.nn.functional.cross_entropy(logits[:, :-1].float().mT, following, reduction="none")
        losses[own] = (each.double().sum(1) / (following != -100).sum(1)).cpu().numpy()
    return losses
