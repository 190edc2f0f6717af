"""AdamW on megatron's optimizers: float32 master weights, clipping, fp16 loss scaling."""

from __future__ import annotations

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.optimizer import MegatronOptimizer

from efficientbench.config.schema import RunConfig


def wrap_data_parallel(model: GPTModel, config: RunConfig) -> DistributedDataParallel:
    """A stage with float32 gradient buffers that are reduced over the data-parallel ranks."""
    ddp = DistributedDataParallel(
        model.config,
        DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, use_distributed_optimizer=config.parallel.distributed_optimizer
        ),
        model,
    )
    ddp.broadcast_params()
    return ddp


def build_optimizer(stages: list[DistributedDataParallel], config: RunConfig) -> MegatronOptimizer:
    """megatron's optimizer over the gradient buffers of this rank's stages; weight decay not on norms and biases."""
    training = config.training
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=training.learning_rate,
            min_lr=training.min_learning_rate,
            weight_decay=training.weight_decay,
            adam_beta1=training.beta1,
            adam_beta2=training.beta2,
            adam_eps=training.epsilon,
            clip_grad=training.gradient_clip,
            bf16=training.dtype == "bf16",
            fp16=training.dtype == "fp16",
            # megatron begins at 2^32, and a short run would skip most of its steps on the way down.
            initial_loss_scale=2.0**16,
            params_dtype=stages[0].config.params_dtype,
            use_distributed_optimizer=config.parallel.distributed_optimizer,
        ),
        list(stages),
        use_gloo_process_groups=False,
    )
    for part in optimizer.chained_optimizers:
        _use_fused_kernel(part.optimizer)
    if training.dtype == "fp16" and len(optimizer.chained_optimizers) > 1:
        _scale_together(optimizer)
    return optimizer


def _use_fused_kernel(optimizer: torch.optim.Optimizer | None) -> None:
    # megatron builds torch's AdamW without naming a kernel, which then walks over the parameters one by one.
    if type(optimizer) is torch.optim.AdamW:
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = True, False


def _scale_together(optimizer: MegatronOptimizer) -> None:
    """One loss scale for all parts of the optimizer, which changes where the gradients of any overflow.

    Experts that ranks share out have a part of their own. megatron changes its scale by its own gradients, while the
    loss is multiplied by the first part's: after an overflow in experts alone their gradients would come out too large.
    """
    prepare, scalers = optimizer.prepare_grads, [part.grad_scaler for part in optimizer.chained_optimizers]

    def prepare_together() -> bool:
        before = scalers[0].state_dict()
        overflowed: bool = prepare()
        scalers[0].load_state_dict(before)
        scalers[0].update(overflowed)
        for scaler in scalers[1:]:
            scaler.load_state_dict(scalers[0].state_dict())
        return overflowed

    optimizer.prepare_grads = prepare_together


def set_learning_rate(optimizer: MegatronOptimizer, learning_rate: float) -> None:
    """Give every parameter group the learning rate of this step."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
