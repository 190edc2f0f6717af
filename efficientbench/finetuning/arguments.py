"""The arguments of TRL's trainer that a configuration means."""

from __future__ import annotations

import os
from typing import Any

from trl import SFTConfig

from efficientbench.finetuning.job import TuningJob


def sft_arguments(job: TuningJob, deepspeed: dict[str, Any] | None, device_type: str) -> SFTConfig:
    """Return the arguments, and join the ranks; under ZeRO-3 models that are loaded from now on are partitioned."""
    config, training = job.config, job.config.training
    # The Trainer has no argument for it.
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(job.output / "tensorboard")
    args = SFTConfig(
        output_dir=str(job.output / "checkpoint"),
        deepspeed=deepspeed,
        # With it accelerate would leave DeepSpeed out.
        use_cpu=device_type == "cpu" and deepspeed is None,
        ddp_timeout=int(training.timeout_s),
        ddp_find_unused_parameters=False,
        max_steps=job.steps,
        per_device_train_batch_size=training.micro_batch_size,
        per_device_eval_batch_size=training.micro_batch_size,
        gradient_accumulation_steps=config.accumulation(job.world),
        learning_rate=training.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=job.warmup,
        weight_decay=training.weight_decay,
        max_grad_norm=training.clip,
        optim="adamw_torch",
        bf16=training.dtype == "bf16",
        gradient_checkpointing=training.recompute,
        # Under ZeRO-3 a recomputed layer's weights are gathered once more only in this way.
        gradient_checkpointing_kwargs={"use_reentrant": config.zero.stage == 3} if training.recompute else None,
        seed=training.seed,
        eval_strategy="steps",
        eval_steps=training.validate_every_steps or job.steps,
        save_strategy="steps",
        # Those that are too many are removed once the new one has its manifest (`checkpoints.py`).
        save_steps=config.checkpoint.interval,
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="tensorboard",
        disable_tqdm=True,
        include_num_input_tokens_seen="non_padding",
        # Tokenized and cut already, in an order that is decided already.
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        packing=False,
        dataloader_num_workers=config.data.workers,
        dataloader_pin_memory=config.data.pin_memory,
    )
    # The ranks join as the device is asked for.
    _ = args.device
    return args
