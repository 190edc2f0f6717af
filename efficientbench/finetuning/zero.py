"""Make DeepSpeed's configuration of a run, and let accelerate and DeepSpeed train on CPUs."""

from __future__ import annotations

import os
from typing import Any

from efficientbench.devices.base import Device
from efficientbench.devices.cpu import CPU
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.methods import find_method


def deepspeed_config(config: FinetuneConfig, device: Device) -> dict[str, Any] | None:
    """Return DeepSpeed's configuration; None with stage 0, which is torch's DDP.

    Sizes that follow from the run are 'auto', which transformers replaces, so that each has one source. Optimizer and
    schedule are the Trainer's: a section for them here would replace them silently.
    """
    zero = config.zero
    if zero.stage == 0:
        return None
    threshold = "auto" if zero.persistence_threshold is None else zero.persistence_threshold
    section: dict[str, Any] = {
        "stage": zero.stage,
        "overlap_comm": device.zero_overlaps,
        "contiguous_gradients": True,
        "reduce_bucket_size": "auto",
    }
    if zero.stage == 3:
        section |= {
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": threshold,
            "zero_hpz_partition_size": zero.hpz,
            # The Trainer gathers an adapter without this option.
            "stage3_gather_16bit_weights_on_model_save": find_method(config.method).lora is None,
        }
    if zero.offload != "none":
        section["offload_optimizer"] = {"device": "cpu"}
    if zero.offload == "all":
        section["offload_param"] = {"device": "cpu"}
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        # The Trainer's AdamW is torch's own.
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": section,
    }


def allow_cpu_ranks() -> None:
    """Let DeepSpeed train on CPUs with gloo in this process.

    accelerate enables DeepSpeed only without `use_cpu`, and then finds no backend for CPUs: each rank would run alone,
    or, on a host with accelerators, with their backend. So its choice is replaced by gloo.
    """
    os.environ["DS_ACCELERATOR"] = "cpu"
    # Else the ranks would use a GPU of the host.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import deepspeed.ops
    from accelerate.state import DistributedType, PartialState

    # Else the first run compiles DeepSpeed's shared-memory collectives for a minute; gloo works without them.
    deepspeed.ops.__compatible_ops__ = {}

    def prepare_backend(
        state: PartialState, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None
    ) -> tuple[str | None, DistributedType]:
        return CPU.backend, DistributedType.MULTI_CPU

    PartialState._prepare_backend = prepare_backend
