"""Other spellings that users type: short names of keys, names from other projects, and numbers like 10B, 1e9 and 2h."""

from __future__ import annotations

import re
from decimal import Decimal

ALIASES = {
    "lr": "training.learning_rate",
    "learning_rate": "training.learning_rate",
    "max_lr": "training.learning_rate",
    "min_lr": "training.min_learning_rate",
    "mbs": "training.micro_batch_size",
    "micro_batch_size": "training.micro_batch_size",
    "device_batch_size": "training.micro_batch_size",
    "gbs": "training.global_batch_size",
    "global_batch_size": "training.global_batch_size",
    "total_batch_size": "training.global_batch_tokens",
    "seq_len": "training.seq_len",
    "seq_length": "training.seq_len",
    "max_seq_len": "training.seq_len",
    "block_size": "training.seq_len",
    "steps": "training.steps",
    "train_iters": "training.steps",
    "num_iterations": "training.steps",
    "max_steps": "training.steps",
    "max_iters": "training.steps",
    "epochs": "training.epochs",
    "tokens": "training.tokens",
    "dtype": "training.dtype",
    "seed": "training.seed",
    "optimizer": "training.optimizer",
    "recompute": "training.recompute",
    "grad_clip": "training.gradient_clip",
    "clip_grad": "training.gradient_clip",
    "weight_decay": "training.weight_decay",
    "eval_every": "training.validation_interval",
    "eval_interval": "training.validation_interval",
    "save_every": "checkpoint.interval",
    "save_interval": "checkpoint.interval",
    "tp": "parallel.tp",
    "pp": "parallel.pp",
    "cp": "parallel.cp",
    "ep": "parallel.ep",
    "dp": "parallel.dp",
    "sp": "parallel.sp",
    "vocab_size": "model.vocab_size",
}
"""Name in other projects, or key without its section → key. `total_batch_size` is nanochat's, in tokens."""

_SCALES = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_SECONDS = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "min": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
_NUMBER = re.compile(r"(\d[\d_]*(?:\.\d+)?(?:[eE]\+?\d{1,2})?)([A-Za-z]*)")


def plain_number(key: str, text: str) -> str:
    """Return a number as Python writes it: 10B → 10000000000, 1e9 → 1000000000, and for a key in seconds 2h → 7200.

    Any other text is returned as it is.
    """
    found = _NUMBER.fullmatch(text)
    if found is None or text.isdigit():
        return text
    number, unit = found.groups()
    scale = ({"": 1} | (_SECONDS if key.endswith("_s") else _SCALES)).get(unit)
    if scale is None:
        return text
    value = Decimal(number) * scale
    return f"{value:.0f}" if value == value.to_integral_value() else f"{value:f}"
