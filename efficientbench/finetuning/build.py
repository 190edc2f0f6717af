"""Build the model of a fine-tuning with the trained part of its method, and the arguments of TRL's trainer."""

from __future__ import annotations

import os
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from transformers import AutoModelForCausalLM, set_seed
from trl import SFTConfig

from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.job import TuningJob
from efficientbench.finetuning.methods import check_targets, find_method, peft_arguments
from efficientbench.finetuning.saved import whole_shape


def build(config: FinetuneConfig, base: str) -> tuple[Any, dict[str, torch.Tensor] | None]:
    """Return the model ready for the method's training, and the initial adapter if the base loses it, on the host.

    Args:
        config: the run's configuration.
        base: the folder or hub id of the base model.

    Raises:
        ConfigError: `adapter` names layers that the model does not have.
    """
    computed = torch.bfloat16 if config.training.dtype == "bf16" else torch.float32
    method = find_method(config.method)
    arguments = peft_arguments(method, config.adapter)
    # DeepSpeed updates float32 copies. Without it AdamW updates the weights, and bf16 would lose small updates.
    own_weights = arguments is None and config.zero.stage == 0
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32 if own_weights else computed)
    set_seed(config.training.seed)
    if arguments is not None:
        check_targets(config.adapter.targets, _linear_layers(model))
        # ZeRO-3 gathers tensors together, which need the same dtype.
        adapted = get_peft_model(model, LoraConfig(**arguments), autocast_adapter_dtype=config.zero.stage == 0)
        return adapted, _on_host(adapted) if method.takes_from_base else None
    if method.choose is not None:
        method.choose(model, config.adapter)
        for parameter in model.parameters():
            if own_weights and not parameter.requires_grad:
                parameter.data = parameter.data.to(computed)
    return model, None


def saved_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that the saved files must hold, by name."""
    # ZeRO-2 saves a copy of a tied layer; other files lack it.
    whole = dict(model.named_parameters(remove_duplicate=False))
    tensors = get_peft_model_state_dict(model) if isinstance(model, PeftModel) else whole
    return {name: whole_shape(tensor) for name, tensor in tensors.items()}


def _on_host(adapted: Any) -> dict[str, torch.Tensor]:
    """Return a copy of the adapter's tensors, by their names in the adapter's file."""
    return {name: tensor.detach().cpu().clone() for name, tensor in get_peft_model_state_dict(adapted).items()}


def _linear_layers(model: Any) -> set[str]:
    """Return the names of linear layers that can get an adapter."""
    # The loss reads the output projection's weight directly, which would bypass an adapter.
    head = model.get_output_embeddings()
    found = [name for name, each in model.named_modules() if isinstance(each, torch.nn.Linear) and each is not head]
    return {name.rpartition(".")[2] for name in found}


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
