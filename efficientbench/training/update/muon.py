"""Muon: the momentum of a matrix, made orthogonal, is the direction of its update (Jordan et al. 2024).

https://kellerjordan.github.io/posts/muon/ has the method, the iteration's factors and the scale of the update; the
momentum's rise over the first steps is nanochat's. A weight may hold several matrices, which are updated separately, as
`costs.matrices` declares; experts are separate too. If tensor-parallel ranks split a matrix, each of them gathers all
parts, computes the update, and keeps its own part.

m, n = rows and columns of a matrix; E = experts in a weight, or 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.optimizer.optimizer import MegatronOptimizer

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.variant import Stack
from efficientbench.basics.errors import ConfigError
from efficientbench.costs.matrices import NEWTON_SCHULZ_STEPS, layer_matrices
from efficientbench.model.initial_weights import EXPERTS, shard, split_dim, tensor_parallel_rank

LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315
"""Factors of the iteration x → LINEAR x + CUBIC x³ + QUINTIC x⁵ on the singular values, which it brings near 1."""
SMALLEST_NORM = 1e-7
FIRST_MOMENTUM, MOMENTUM, RISING_STEPS = 0.85, 0.95, 300


def momentum(step: int) -> float:
    """Return the momentum of a step, counted from 1: it rises linearly, then stays constant."""
    return FIRST_MOMENTUM + (MOMENTUM - FIRST_MOMENTUM) * min((step - 1) / RISING_STEPS, 1.0)


def set_momentum(optimizer: MegatronOptimizer, step: int) -> None:
    """Set Muon's momentum to that of a step, counted from 1."""
    for part in optimizer.chained_optimizers:
        if isinstance(part.optimizer, Muon):
            for group in part.optimizer.param_groups:
                group["momentum"] = momentum(step)


@torch.no_grad()
def orthogonalized(matrices: torch.Tensor) -> torch.Tensor:
    """Bring the singular values of each matrix [E, m, n] near 1 by Newton-Schulz steps, in the matrices' dtype.

    A few steps bring them between about 0.7 and 1.2, which serves an update as well as 1 does.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    norm = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True, dtype=torch.float32)
    x = (x / norm.clamp_min(SMALLEST_NORM)).to(matrices.dtype)
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.mT
        factor = torch.baddbmm(square, square, square, beta=CUBIC, alpha=QUINTIC)
        x = torch.baddbmm(x, factor, x, beta=LINEAR)
    return x.mT if tall else x


def direction(update: torch.Tensor, heights: Sequence[int]) -> torch.Tensor:
    """Return the orthogonalized matrices of a full weight [E, rows, n], each scaled by max(1, m / n)^½.

    Args:
        update: [E, rows, n], the weight's momentum.
        heights: how many rows of each matrix follow one another; the pattern repeats down the weight.
    """
    found = []
    by_group = update.unflatten(-2, (-1, sum(heights)))
    for part in by_group.split(list(heights), dim=-2):
        matrices = part.flatten(-3, -2)
        scale = max(1.0, matrices.shape[-2] / matrices.shape[-1]) ** 0.5
        found.append((orthogonalized(matrices) * scale).view(part.shape))
    return torch.cat(found, dim=-2).view(update.shape)


@dataclass(frozen=True)
class Matrices:
    """The matrices of one weight, of which this rank may hold a part."""

    weight: torch.nn.Parameter
    """The model's parameter, with Megatron's marks of how it is split."""
    heights: tuple[int, ...]
    """The rows of each matrix, as `direction` takes them."""
    group: dist.ProcessGroup | None
    """The ranks that split the weight; None: it is not split."""
    dtype: torch.dtype
    """The dtype of the products."""

    @classmethod
    def of(cls, name: str, weight: torch.nn.Parameter, model: ModelConfig, dtype: torch.dtype) -> Matrices:
        """Return the matrices of a weight by its global name.

        Raises:
            ConfigError: the attention declares no such weight.
        """
        stack = _declared(name, model)
        split = split_dim(weight) is not None and tensor_parallel_rank(name)[1] > 1
        group = None
        if split and EXPERTS in name:
            group = parallel_state.get_expert_tensor_parallel_group()
        elif split:
            group = parallel_state.get_tensor_model_parallel_group()
        return cls(weight, stack.heights, group, dtype)

    def direction(self, update: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the direction, in float32, for this rank's part of the momentum."""
        whole = self._gathered(update.to(self.dtype))
        found = direction(whole if whole.dim() == 3 else whole.unsqueeze(0), self.heights).view(whole.shape)
        if self.group is not None:
            found = shard(found, self.weight, dist.get_rank(self.group), self.group.size())
        return found.float()

    def _gathered(self, part: torch.Tensor) -> torch.Tensor:
        """Gather the ranks' parts into the full tensor: the inverse of `initial_weights.shard`."""
        if self.group is None:
            return part
        parts = part.new_empty(self.group.size() * part.numel())
        dist.all_gather_into_tensor(parts, part.flatten(), group=self.group)
        dim, stride = split_dim(self.weight), int(getattr(self.weight, "partition_stride", 1))
        assert dim is not None
        halves = zip(*(each.chunk(stride, dim=dim) for each in parts.view(-1, *part.shape)), strict=True)
        return torch.cat([torch.cat(half, dim=dim) for half in halves], dim=dim)


def _declared(name: str, model: ModelConfig) -> Stack:
    """Return the declared matrices of a weight by its global name. Raises ConfigError if the weight is not declared."""
    _, _, number, within = name.split(".", 3)
    view = model.views[model.layer_kinds[int(number)]]
    try:
        return layer_matrices(view)[within]
    except KeyError:
        raise ConfigError(
            f"training.optimizer: muon cannot tell the matrices of {name}: attention {view.attention.kind!r} does not "
            "declare that weight (AttentionVariant.matrices)"
        ) from None


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov's momentum and decoupled weight decay, on float32 weights.

    Each group has `matrices` in the order of its `params`. Like torch's fused AdamW it obeys two attributes, which are
    tensors on the device: `found_inf` of 1 skips the update, `grad_scale` divides the gradients.
    """

    def __init__(self, groups: Sequence[dict[str, Any]]) -> None:
        """Take parameter groups in torch's form, with `matrices`."""
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "momentum": momentum(1)})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every weight by its gradient."""
        skip, divisor = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        for group in self.param_groups:
            for weight, matrices in zip(group["params"], group["matrices"], strict=True):
                gradient = weight.grad if divisor is None else weight.grad / divisor
                state = self.state[weight]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(weight)
                before = state["momentum"]
                after = before.lerp(gradient, 1 - group["momentum"])
                update = matrices.direction(gradient.lerp(after, group["momentum"]))
                updated = weight * (1 - group["lr"] * group["weight_decay"])
                updated.sub_(update, alpha=group["lr"])
                for kept, new in ((before, after), (weight, updated)):
                    # A factor of 0 would not do: numbers that are not finite must not reach momentum or weight.
                    kept.copy_(new if skip is None else torch.where(skip > 0, kept, new))
