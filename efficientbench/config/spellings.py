"""Other spellings that users type: short names of keys, names from other projects, and numbers like 10B, 1e9 and 2h.

`SPELLINGS` is the one table of names: all commands read it, and docs/coming-from.md is made from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple


class Spelling(NamedTuple):
    """What names mean in a training and in a fine-tuning.

    A meaning is a key, which takes the value; `key=value`, which a true value sets; `key={}x`, which the value is put
    into; "" where the name is unknown; or else the answer to whoever types the name.
    """

    names: str
    """Names of one meaning, apart by spaces, with `_` for `-`."""
    training: str
    tuning: str


_LOSS_OF_ANSWERS = "only answers are learned, as by train_on_inputs=False; leave it out"
SPELLINGS = (
    Spelling("lr learning_rate max_lr", "training.learning_rate", "training.learning_rate"),
    Spelling("min_lr", "training.min_learning_rate", "the learning rate falls to 0; leave it out"),
    Spelling("mbs micro_batch_size", "training.micro_batch_size", "training.micro_batch_size"),
    Spelling("device_batch_size per_device_train_batch_size", "training.micro_batch_size", "training.micro_batch_size"),
    Spelling("gbs global_batch_size", "training.global_batch_size", "training.global_batch_size"),
    Spelling(
        "batch_size",
        "training.micro_batch_size counts a device's sequences, training.global_batch_size a step's: name one of them",
        "training.global_batch_size",
    ),
    Spelling(
        "total_batch_size", "training.global_batch_tokens", "it counts tokens; training.global_batch_size, examples"
    ),
    Spelling(
        "gradient_accumulation_steps",
        *["it follows: training.global_batch_size = micro-batch × data-parallel ranks × these steps; set that one"] * 2,
    ),
    Spelling(
        "target_examples_per_step",
        "it counts conversations, of which training.global_batch_size sequences hold several; set that one",
        "training.global_batch_size",
    ),
    Spelling("examples_per_step", "it is training.global_batch_size / rl.samples; set training.global_batch_size", ""),
    Spelling("num_samples", "rl.samples", ""),
    Spelling("seq_len seq_length max_seq_len", "training.seq_len", "data.max_length"),
    Spelling("block_size", "training.seq_len", ""),
    Spelling("cutoff_len", "it is of fine-tunings; training.seq_len here", "data.max_length"),
    Spelling("steps max_steps", "training.steps", "training.steps"),
    Spelling("train_iters num_iterations max_iters", "training.steps", "training.steps"),
    Spelling("epochs num_epochs num_train_epochs", "training.epochs", "training.epochs"),
    Spelling("tokens train_tokens", "training.tokens", ""),
    Spelling("target_param_data_ratio", "training.tokens={}x", ""),
    Spelling("target_flops", "training.tokens is this, divided by the FLOPs per token that plan prints", ""),
    Spelling("dtype", "training.dtype", "training.dtype"),
    Spelling("bf16", "training.dtype=bf16", "training.dtype=bf16"),
    Spelling("fp16", "training.dtype=fp16", "training.dtype is bf16 or fp32"),
    Spelling("fp8", "training.dtype is bf16, fp16 or fp32", "training.dtype is bf16 or fp32"),
    Spelling("seed", "training.seed", "training.seed"),
    Spelling("optimizer optim", "training.optimizer", "it is AdamW; leave it out"),
    Spelling("embedding_lr", "training.embedding_learning_rate", ""),
    Spelling("unembedding_lr", "training.head_learning_rate", ""),
    Spelling("matrix_lr", "training.matrix_learning_rate", ""),
    Spelling("scalar_lr", "no model here has such scalars; norms and biases have training.learning_rate", ""),
    Spelling("adam_beta1", "training.beta1", ""),
    Spelling("adam_beta2", "training.beta2", ""),
    Spelling("recompute", "training.recompute", "training.recompute"),
    Spelling("gradient_checkpointing use_gradient_checkpointing", "training.recompute=full", "training.recompute"),
    Spelling("grad_clip clip_grad max_grad_norm", "training.gradient_clip", "training.clip"),
    Spelling("weight_decay", "training.weight_decay", "training.weight_decay"),
    Spelling(
        "warmup_steps",
        "set training.lr_warmup_tokens or lr_warmup_fraction; measurement.warmup_steps are not measured",
        "training.warmup_steps",
    ),
    Spelling("warmup_ratio", "training.lr_warmup_fraction", "training.warmup_steps counts steps; set that one"),
    Spelling("warmdown_ratio", "training.lr_decay_fraction, with training.lr_schedule=wsd", ""),
    Spelling("final_lr_frac", "training.min_learning_rate is a rate, not a share of the peak's; set that one", ""),
    Spelling("init_lr_frac", "training.lr_scale is a factor on every step's rate, not on the first one's alone", ""),
    Spelling("lr_scheduler_type", "training.lr_schedule", "the learning rate falls by a cosine to 0; leave it out"),
    Spelling(
        "eval_every eval_interval eval_steps eval_step", "training.validation_interval", "training.validate_every_steps"
    ),
    Spelling("eval_tokens", "training.validation_tokens", ""),
    Spelling("core_metric_every", "evaluation.core_every", ""),
    Spelling("core_metric_max_per_task", "evaluation.core_limit", ""),
    Spelling("sample_every", "a training samples no text; efficientbench generate RUN does so", ""),
    Spelling("save_every save_interval save_steps save_step", "checkpoint.interval", "checkpoint.interval"),
    Spelling("save_total_limit", "checkpoint.keep", "checkpoint.keep"),
    Spelling(
        "resume_from_step resume_from_checkpoint", *["the same command again resumes from the last good checkpoint"] * 2
    ),
    Spelling("logging_steps", *["every step is logged; leave it out"] * 2),
    Spelling("model_tag label", "label", "label"),
    Spelling("run wandb_run_name", "label", "label"),
    Spelling("wandb_project", "wandb", "wandb"),
    Spelling("device_type", "device", "device"),
    Spelling("output_dir output", "output", "output"),
    Spelling("tp", "parallel.tp", ""),
    Spelling("pp", "parallel.pp", ""),
    Spelling("cp", "parallel.cp", ""),
    Spelling("ep", "parallel.ep", ""),
    Spelling("dp", "parallel.dp", ""),
    Spelling("sp", "parallel.sp", ""),
    Spelling("vocab_size", "model.vocab_size", ""),
    Spelling("depth", "is decided by the run's name, as in nanochat_d12: run base_d12 depth=16 is run base_d16", ""),
    Spelling("aspect_ratio", "model.hidden_size (64 · depth in dN)", ""),
    Spelling("head_dim", "model.head_dim", ""),
    Spelling("window_pattern", "model.pattern names kinds of layers, model.kinds says which window each has", ""),
    Spelling("nsa_sliding_window_size", "model.attention.window", ""),
    Spelling("nsa_compress_block_size", "model.attention.compress_block", ""),
    Spelling("nsa_num_selected_blocks", "model.attention.select_count", ""),
    Spelling("mla_latent_dim", "model.attention.kv_lora_rank", ""),
    Spelling("mla_qk_head_dim", "model.attention.qk_nope_head_dim", ""),
    Spelling("base_checkpoint mid_checkpoint sft_checkpoint", "init.run", ""),
    Spelling(
        "model_name_or_path base_model",
        "init.run=RUN begins with a run's weights; efficientbench import makes one",
        "model",
    ),
    Spelling("data_path dataset_path", "data.path", "data.path"),
    Spelling("valid_dataset_path", "data.split makes the validation text", "data.validation"),
    Spelling(
        "val_set_size",
        "data.split makes the validation text",
        "data.validation_share and data.validation_examples say how many are held out",
    ),
    Spelling("adapter_name", "it is of fine-tunings", "method"),
    Spelling("use_curriculum curriculum", "it is of fine-tunings", "curriculum.use"),
    Spelling("curriculum_seed", "it is of fine-tunings; data.seed is the order's here", "curriculum.seed"),
    Spelling("lora_r", "it is of fine-tunings", "adapter.r"),
    Spelling("lora_alpha", "it is of fine-tunings", "adapter.alpha"),
    Spelling("lora_dropout", "it is of fine-tunings", "adapter.dropout"),
    Spelling("target_modules lora_target_modules", "it is of fine-tunings", "adapter.targets"),
    Spelling("train_on_inputs", _LOSS_OF_ANSWERS, _LOSS_OF_ANSWERS),
    Spelling("dataloader_num_workers", "", "data.workers"),
    Spelling("dataloader_pin_memory", "", "data.pin_memory"),
    Spelling("offload_optimizer", "", "zero.offload=optimizer"),
    Spelling("deepspeed", "parallel.* shards a training", "zero.* keys are written into DeepSpeed's configuration"),
    Spelling(
        "config", "--matrix FILE has runs of your own, key=value changes one", "key=value sets each of its values"
    ),
)
"""All names. `total_batch_size` is nanochat's, in tokens; `batch_size` is EfficientLLM's or LLM-Adapters'."""
_KEY = re.compile(r"([a-z_]+(?:\.\w+)*)(=\S+)?")
_SEQUENCES = "training.global_batch_size"
_TRUE = frozenset({"", "1", "true", "yes", "on"})


def _meanings(column: str) -> dict[str, str]:
    return {name: getattr(each, column) for each in SPELLINGS for name in each.names.split() if getattr(each, column)}


TRAINING, TUNING = _meanings("training"), _meanings("tuning")
"""Name → meaning in a training, and in a fine-tuning."""


def key_of(meaning: str) -> str | None:
    """Return the key of a meaning; None if the meaning is an answer."""
    found = _KEY.fullmatch(meaning)
    return found[1] if found else None


def keys_of(meanings: Mapping[str, str]) -> dict[str, str]:
    """Return the key of each name whose value is the key's own."""
    return {name: meaning for name, meaning in meanings.items() if key_of(meaning) == meaning}


ALIASES = keys_of(TRAINING)
"""Name in other projects, or key without its section → key of a training."""


def spelled(override: str, meanings: Mapping[str, str]) -> tuple[str, str | None]:
    """Return an override with our key, and None; or what to type instead of it.

    `override`: `key=value` as typed; a key of ours stays as it is. `meanings`: `TRAINING` or `TUNING`.
    """
    word, separator, text = override.partition("=")
    meaning = meanings.get(word.replace("-", "_"))
    if _SEQUENCES in (word, meaning) and re.search(r"\d[MGBT]$", text):
        tokens = f": {text} tokens are training.global_batch_tokens={text}" if meanings is TRAINING else ""
        return override, f"{override[:80]}: a step has no {text} sequences{tokens}"
    if not separator or meaning is None:
        return override, None
    found = _KEY.fullmatch(meaning)
    if found is None:
        return override, f"{word}: {meaning}"
    key, value = found.groups()
    if value is None:
        return f"{key}={text}", None
    if "{}" in value:
        return key + value.format(text), None
    if text.lower() not in _TRUE:
        return override, f"{override[:80]}: leave it out, or set {key}; {word}=true is {key}{value}"
    return key + value, None


def is_name(word: str) -> bool:
    """Return whether a word, which someone typed as an option, is a name of the table or looks like a key."""
    return word in TRAINING or word in TUNING or "." in word


_SCALES = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_LENGTHS = {"k": 1024, "K": 1024}
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
    """Return a number as Python writes it: 10B → 10000000000, 1e9 → 1000000000.

    For a key in seconds 2h is 7200, and for a sequence's length 8k is 8192, as contexts are called. Any other text is
    returned as it is.
    """
    found = _NUMBER.fullmatch(text)
    if found is None or text.isdigit():
        return text
    number, unit = found.groups()
    scales = (
        _SECONDS if key.endswith("_s") else _SCALES | _LENGTHS if key.endswith(("seq_len", "max_length")) else _SCALES
    )
    scale = ({"": 1} | scales).get(unit)
    if scale is None:
        return text
    value = Decimal(number) * scale
    return f"{value:.0f}" if value == value.to_integral_value() else f"{value:f}"
