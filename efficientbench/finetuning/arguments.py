"""Translate a fine-tuning's configuration into the arguments of TRL's trainer."""

from __future__ import annotations

import os
from typing import Any

from trl import SFTConfig

from efficientbench.finetuning.job import TuningJob


def sft_arguments(job: TuningJob, deepspeed: dict[str, Any] | None, device_type: str) -> SFTConfig:
    """Return the arguments, and join the ranks. Under ZeRO-3 all models loaded afterwards are partitioned."""
    config, training = job.config, job.config.training
    # The Trainer takes TensorBoard's folder only from the environment.
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(job.output / "tensorboard")
    args = SFTConfig(
        output_dir=str(job.output / "checkpoint"),
        deepspeed=deepspeed,
        # With use_cpu accelerate would not use DeepSpeed.
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
        # Under ZeRO-3 only reentrant recomputation gathers a layer's weights again.
        gradient_checkpointing_kwargs={"use_reentrant": config.zero.stage == 3} if training.recompute else None,
        seed=training.seed,
        eval_strategy="steps",
        eval_steps=training.validate_every_steps or job.steps,
        save_strategy="steps",
        # `checkpoints.py` removes old checkpoints once the new one has its manifest.
        save_steps=config.checkpoint.interval,
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="tensorboard",
        disable_tqdm=True,
        include_num_input_tokens_seen="non_padding",
        # The examples are already tokenized, truncated and ordered.
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        packing=False,
        dataloader_num_workers=config.data.workers,
        dataloader_pin_memory=config.data.pin_memory,
    )
    # Reading `device` joins the ranks.
    _ = args.device
    return args
