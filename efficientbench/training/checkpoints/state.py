"""What a checkpoint holds of this rank: weights, the optimizer's states, random generators, as named rectangles.

Names: `model.<global name>`, `optimizer.main.<…>` (float32 masters of bf16 and fp16 weights), `optimizer.exp_avg.<…>`,
`optimizer.exp_avg_sq.<…>`, `rng.<rank>.<generator>`. None of them depends on the layout, nor on which of megatron's
optimizers made the states: every layout reads what any other wrote. Of the generators a rank's own are read again in
the same layout only; no layer draws from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from efficientbench.training.checkpoints.pieces import Piece, pieces

if TYPE_CHECKING:
    from efficientbench.training.checkpoints.held import Block, Held

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class OptimizerState:
    """What the optimizer keeps of one parameter on this rank: flat tensors from element `begin` on."""

    optimizer: torch.optim.Optimizer
    main: torch.Tensor
    """What the optimizer updates: a float32 master, or the weight itself."""
    begin: int
    sharded: bool
    """Whether the data-parallel ranks share the states out."""


def weights(parameters: list[Held], to_write: bool) -> Iterator[Piece]:
    """Every weight; `to_write`: those only that this rank is to write."""
    for each in parameters:
        if each.first_copy or not to_write:
            yield from _named("model", each.parts, each.parameter.detach().view(-1), 0)


def optimizer_states(parameters: list[Held], optimizer: MegatronOptimizer, to_write: bool) -> Iterator[Piece]:
    """Masters and moments; `to_write`: those only that this rank is to write. The moments must be there."""
    states = _states(optimizer)
    for each in parameters:
        state = states.get(each.parameter)
        if state is None or (to_write and not (each.first_stage if state.sharded else each.first_copy)):
            continue
        if each.parameter.dtype != torch.float32:
            yield from _named("optimizer.main", each.parts, state.main.detach().view(-1), state.begin)
        for moment in MOMENTS:
            tensor = state.optimizer.state[state.main][moment]
            yield from _named(f"optimizer.{moment}", each.parts, tensor.view(-1), state.begin)


def _named(prefix: str, parts: list[Block], storage: torch.Tensor, begin: int) -> Iterator[Piece]:
    for piece in pieces(parts, storage, begin):
        yield Piece(f"{prefix}.{piece.name}", piece.whole, piece.offset, piece.tensor)


def _states(optimizer: MegatronOptimizer) -> dict[torch.nn.Parameter, OptimizerState]:
    found = {}
    for part in optimizer.chained_optimizers:
        groups = part.optimizer.param_groups
        if isinstance(part, DistributedOptimizer):
            for parameter, (group, order) in part.model_param_group_index_map.items():
                begin = part._get_model_param_range_map(parameter)["param"].start
                found[parameter] = OptimizerState(part.optimizer, groups[group]["params"][order], begin, True)
        elif hasattr(part, "float16_groups"):
            models = [parameter for group in part.float16_groups for parameter in group]
            for parameter in models:
                found[parameter] = OptimizerState(part.optimizer, parameter.main_param, 0, False)
            for parameter in (parameter for group in part.fp32_from_fp32_groups for parameter in group):
                found[parameter] = OptimizerState(part.optimizer, parameter, 0, False)
        else:
            for parameter in part.get_parameters():
                found[parameter] = OptimizerState(part.optimizer, parameter, 0, False)
    return found


def fill_optimizer(optimizer: MegatronOptimizer, updates: float | None) -> None:
    """Give the optimizer the states that it would make at its first update, where it has none.

    Args:
        optimizer: of this rank.
        updates: set the number of updates made; None: leave it, and take 0 where there is none.
    """
    for part in optimizer.chained_optimizers:
        for group in part.optimizer.param_groups:
            for main in group["params"]:
                state = part.optimizer.state[main]
                for moment in MOMENTS:
                    if moment not in state:
                        state[moment] = torch.zeros_like(main, memory_format=torch.preserve_format).detach()
                if updates is not None or ("step" not in state and "step" not in group):
                    _count_updates(part.optimizer, group, main, updates or 0.0)


def _count_updates(optimizer: torch.optim.Optimizer, group: dict[str, Any], main: torch.Tensor, updates: float) -> None:
    if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        # A tensor for each parameter: a shared one would be advanced once for each of them.
        device = main.device if group["fused"] or group["capturable"] else torch.device("cpu")
        optimizer.state[main]["step"] = torch.tensor(updates, dtype=torch.float32, device=device)
    else:
        # Apex and Transformer Engine count by group.
        group["step"] = int(updates)


def updates_made(optimizer: MegatronOptimizer) -> float:
    """Updates that the optimizer has made; 0 where this rank has none of its states."""
    counts = [
        float(part.optimizer.state[main].get("step", group.get("step", 0)))
        for part in optimizer.chained_optimizers
        for group in part.optimizer.param_groups
        for main in group["params"][:1]
    ]
    return max(counts, default=0.0)


def loss_scale(optimizer: MegatronOptimizer) -> dict[str, Any] | None:
    """The state of fp16's loss scaling, as plain numbers; None in other dtypes."""
    scaler = getattr(optimizer.chained_optimizers[0], "grad_scaler", None)
    if scaler is None:
        return None
    return {name: value.tolist() if torch.is_tensor(value) else value for name, value in scaler.state_dict().items()}


def set_loss_scale(optimizer: MegatronOptimizer, saved: dict[str, Any]) -> None:
    """What `loss_scale` gave, to every part of the optimizer."""
    for part in optimizer.chained_optimizers:
        device = part.grad_scaler.scale.device
        part.grad_scaler.load_state_dict({**saved, "scale": torch.tensor(saved["scale"], device=device)})


def generators(rank: int, device: torch.device) -> Iterator[Piece]:
    """The states of this rank's random generators; what is read into them counts after `set_generators`."""
    tracked = {f"tracked.{name}": state for name, state in get_cuda_rng_tracker().get_states().items()}
    states = {"host": torch.get_rng_state(), **tracked}
    of_device = torch.get_device_module(device)
    if hasattr(of_device, "get_rng_state"):  # the host's is all that a CPU has
        states["device"] = of_device.get_rng_state()
    for name, state in states.items():
        yield Piece(f"rng.{rank}.{name}", tuple(state.shape), (0,) * state.dim(), state)


def set_generators(read: list[Piece], device: torch.device) -> None:
    """Set this rank's random generators to states that `generators` named."""
    states = {piece.name.split(".", 2)[2]: piece.tensor for piece in read}
    torch.set_rng_state(states["host"])
    if "device" in states:
        torch.get_device_module(device).set_rng_state(states["device"])
    tracked = {name.partition(".")[2]: state for name, state in states.items() if name.startswith("tracked.")}
    get_cuda_rng_tracker().set_states(tracked)
