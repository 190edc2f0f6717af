"""AdamW and Muon on Megatron's optimizers: float32 masters, clipping, loss scaling, and updates without a host's wait.

Megatron's own `step` reads the norm on the host, which drains the device's queue between the backward pass and the
update. `QueuedUpdate` uses Megatron's lists, groups, shards and copies too, but leaves the norm on the device, which
clips, and skips the update of a step that is not finite.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import (
    ChainedOptimizer,
    Float16OptimizerWithFloat16Params,
    FP32Optimizer,
    MegatronOptimizer,
)
from torch.nn.utils import get_total_norm

from efficientbench.config.schema import RunConfig
from efficientbench.model.initial_weights import global_parameters
from efficientbench.training.update.muon import Matrices, Muon
from efficientbench.training.update.parameter_roles import Role, group_overrides, parameter_roles


def wrap_data_parallel(model: GPTModel, config: RunConfig) -> DistributedDataParallel:
    """Return the stage with float32 gradient buffers, which Megatron reduces over the data-parallel ranks."""
    parallel = config.parallel
    replicas = parallel_state.get_data_parallel_world_size(with_context_parallel=True)
    overlaps = parallel.overlap and replicas > 1
    ddp = DistributedDataParallel(
        model.config,
        DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=parallel.distributed_optimizer,
            overlap_grad_reduce=overlaps,
            overlap_param_gather=overlaps and parallel.distributed_optimizer,
            bucket_size=parallel.bucket(replicas),
        ),
        model,
    )
    ddp.broadcast_params()
    return ddp


def gather_weights(stages: list[DistributedDataParallel]) -> None:
    """Wait until all weights are those of the last update; all data-parallel ranks call this together.

    If weights are gathered during the forward pass, each module waits for its own weights when it is called. Another
    reader would get weights of an earlier step.
    """
    for stage in stages:
        if stage.ddp_config.overlap_param_gather:
            stage.start_param_sync(force_sync=True)


def build_optimizer(stages: list[DistributedDataParallel], config: RunConfig) -> MegatronOptimizer:
    """Return Megatron's optimizer over this rank's gradient buffers; call `set_rates` before each step."""
    training, roles = config.training, parameter_roles(stages)
    settings = OptimizerConfig(
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
        # Megatron begins at 2^32, and a short run would skip most of its steps on the way down.
        initial_loss_scale=2.0**16,
        params_dtype=stages[0].config.params_dtype,
        use_distributed_optimizer=config.parallel.distributed_optimizer,
    )
    taken = [each for each, role in roles.items() if role == "matrices"] if training.optimizer == "muon" else []
    # Megatron's optimizer skips parameters that need no gradient.
    for parameter in taken:
        parameter.requires_grad = False
    optimizer = get_megatron_optimizer(
        settings, list(stages), config_overrides=group_overrides(roles, training), use_gloo_process_groups=False
    )
    for part in optimizer.chained_optimizers:
        _use_fused_kernel(part.optimizer)
        if isinstance(part, DistributedOptimizer):
            _copy_together(part)
    for parameter in taken:
        parameter.requires_grad = True
    if taken:
        optimizer = ChainedOptimizer([*optimizer.chained_optimizers, *_muon_parts(stages, config, roles, optimizer)])
    if training.dtype == "fp16" and len(optimizer.chained_optimizers) > 1:
        _scale_together(optimizer)
    return optimizer


def _muon_parts(
    stages: list[DistributedDataParallel],
    config: RunConfig,
    roles: Mapping[torch.nn.Parameter, Role],
    adamw: MegatronOptimizer,
) -> Iterator[MegatronOptimizer]:
    """Yield the optimizers of the layers' matrices: one, and another for experts that ranks split.

    Args:
        stages: this rank's stages.
        config: the run's configuration.
        roles: the role of each of this rank's parameters.
        adamw: the optimizer of all other parameters, whose settings and loss scale each part shares.
    """
    training, first = config.training, adamw.chained_optimizers[0]
    dtype = torch.float32 if training.dtype == "fp32" else torch.bfloat16
    for shared_out in (False, True):
        named = [
            (name, parameter)
            for stage in stages
            for name, parameter in global_parameters(stage.module).items()
            if roles[parameter] == "matrices" and getattr(parameter, "allreduce", True) != shared_out
        ]
        if not named:
            continue
        matrices = [Matrices.of(name, parameter, config.model, dtype) for name, parameter in named]
        group = {"params": [parameter for _, parameter in named], "matrices": matrices, "wd_mult": 1.0}
        muon = Muon([{**group, "lr_mult": training.matrix_rate / training.learning_rate}])
        if training.dtype == "fp32":
            part = FP32Optimizer(muon, first.config, None)
        else:
            scaler = copy.deepcopy(first.grad_scaler)
            part = Float16OptimizerWithFloat16Params(muon, first.config, scaler, None)
        part.grad_stats_parallel_group = (
            parallel_state.get_expert_tensor_model_pipeline_parallel_group()
            if shared_out
            else first.get_grad_stats_parallel_group()
        )
        part.tp_group = first.tp_group
        yield part


def _use_fused_kernel(optimizer: torch.optim.Optimizer | None) -> None:
    # Megatron builds torch's AdamW without choosing a kernel; the default updates parameters one by one.
    if type(optimizer) is torch.optim.AdamW:
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = True, False


def _copy_together(part: DistributedOptimizer) -> None:
    """Copy all float32 masters to their weights by one call, where Megatron makes one call for each weight."""
    weights, masters = [], []
    # Not `shard_fp32_groups`: float32 weights are their own masters, which Megatron copies onto themselves.
    for shards, group in zip(part.shard_fp32_from_float16_groups, part.model_float16_groups, strict=True):
        for master, weight in zip(shards, group, strict=True):
            span = part._get_model_param_range_map(weight)["gbuf_world_in_bucket"]
            buffer, _, bucket = part.model_param_gbuf_map[weight]
            weights.append(part.buffers[buffer].buckets[bucket].param_data.view(-1)[span.start : span.end])
            masters.append(master)
    part._copy_main_params_to_model_params = (
        partial(torch._foreach_copy_, weights, masters) if weights else lambda: None
    )


def _scale_together(optimizer: MegatronOptimizer) -> None:
    """Let all parts of the optimizer use one loss scale, which changes when the gradients of any part overflow.

    Experts that ranks split have a separate part. Megatron changes a part's scale by that part's gradients, but
    multiplies the loss by the first part's scale. After an overflow in experts alone, their gradients would be too
    large.
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


def set_rates(optimizer: MegatronOptimizer, learning_rate: float, weight_decay: float) -> None:
    """Set every parameter group's learning rate and weight decay for this step.

    Megatron's groups have the factors `lr_mult`, and `wd_mult`, 0 or 1, which only its own scheduler would apply.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["lr_mult"]
        group["weight_decay"] = weight_decay * group["wd_mult"]


def can_queue(optimizer: MegatronOptimizer, device: torch.device) -> bool:
    """Return whether `QueuedUpdate` works: tried on `device`, since not every fused AdamW can skip a step and clip.

    It does not work with fp16, whose loss scaler decides on the host, nor with Apex's and Transformer Engine's AdamW,
    which have no flag to skip a step.
    """
    parts = optimizer.chained_optimizers
    ours = all(part.optimizer is None or type(part.optimizer) in (torch.optim.AdamW, Muon) for part in parts)
    return ours and not any(part.config.fp16 for part in parts) and _obeys(device)


def _obeys(device: torch.device) -> bool:
    """Return whether the device's fused AdamW skips a step by a flag, and divides gradients by a number."""
    weight = torch.ones(2, device=device, requires_grad=True)
    try:
        adamw = torch.optim.AdamW([weight], lr=0.5, betas=(0.5, 0.5), fused=True)
        for flag, gradient in ((1.0, torch.nan), (0.0, 8.0)):
            weight.grad = torch.full_like(weight, gradient)
            with _flagged([adamw], torch.full((), flag, device=device), torch.full((), 4.0, device=device)):
                adamw.step()
            state = [value.cpu() for value in adamw.state[weight].values()]
            if flag and (any(map(torch.count_nonzero, state)) or not bool((weight.cpu() == 1).all())):
                return False
        # The moment after one step is half of 8 / 4.
        return bool((adamw.state[weight]["exp_avg"].cpu() == 1).all())
    except RuntimeError:
        # The device has no fused kernel, or one that takes neither flag nor divisor.
        return False


@contextlib.contextmanager
def _flagged(optimizers: list[torch.optim.AdamW | Muon], skip: torch.Tensor, divisor: torch.Tensor) -> Iterator[None]:
    """Let fused AdamW and Muon skip the block's step if `skip` is 1, else divide gradients by `divisor`."""
    # The attributes that torch.amp.GradScaler sets.
    for each in optimizers:
        each.found_inf, each.grad_scale = skip, divisor  # type: ignore[union-attr]
    yield
    for each in optimizers:
        del each.found_inf, each.grad_scale  # type: ignore[union-attr]


class QueuedUpdate:
    """The norm, clipping and update of a step, queued on the device, for an optimizer that `can_queue`."""

    def __init__(
        self, optimizer: MegatronOptimizer, device: torch.device, own_norm: Callable[[], torch.Tensor] | None = None
    ) -> None:
        """Take the optimizer to update with.

        `own_norm`: returns the norm of this rank's own gradients; only for a single rank, else None.
        """
        self.optimizer, self.device, self.own_norm = optimizer, device, own_norm

    @torch.no_grad()
    def norm(self) -> torch.Tensor:
        """Prepare the gradients for an update, and return their norm over all ranks, [] float32 on the device.

        The value is that of Megatron's `get_grad_norm`, which would read it on the host.
        """
        self.optimizer.prepare_grads()
        if self.own_norm is not None:
            return self.own_norm()
        # Experts that ranks split are summed over other ranks than the rest.
        gradients: dict[dist.ProcessGroup, list[torch.Tensor]] = {}
        for part in self.optimizer.chained_optimizers:
            own = gradients.setdefault(part.get_grad_stats_parallel_group(), [])
            own += part.get_main_grads_for_grad_norm()
        squares = []
        for group, own in gradients.items():
            square = get_total_norm(own).square() if own else torch.zeros((), device=self.device)
            dist.all_reduce(square, group=group)
            squares.append(square)
        return torch.stack(squares).sum().sqrt()

    @torch.no_grad()
    def update(self, norm: torch.Tensor, skip: torch.Tensor) -> None:
        """Queue clipping and update; if `skip` is 1, weights, moments and step counts do not change.

        Args:
            norm: [], this step's norm of all gradients.
            skip: [] float32 on the device, 0 or 1, the same on all ranks.
        """
        parts = [part for part in self.optimizer.chained_optimizers if part.optimizer is not None]
        clip = parts[0].config.clip_grad if parts else 0.0
        # AdamW's kernel divides as it reads gradients: separate clipping would be another pass over them. The divisor
        # is that of torch's clip_grads_with_norm_. In a skipped step it may be NaN, and the kernel does not read it.
        divisor = ((norm + 1e-6) / clip).clamp(min=1.0) if clip > 0.0 else torch.ones_like(norm)
        with _flagged([part.optimizer for part in parts], skip, divisor):
            self.optimizer.step_with_ready_grads()
