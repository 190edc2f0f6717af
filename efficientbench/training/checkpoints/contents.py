"""The contents of a checkpoint: `tensors_to_write` decides, and `tensors_to_read` asks for the same names again.

Weights, the optimizer's states and random generators lie in it as named rectangles (`shards`). Their names are
`model.<global name>`, `optimizer.main.<…>` (float32 masters of bf16 and fp16 weights), `optimizer.exp_avg.<…>` and
`optimizer.exp_avg_sq.<…>` of what AdamW updates, `optimizer.momentum.<…>` of what Muon updates, and
`rng.<rank>.<generator>`. No name depends on the layout, nor on which of Megatron's optimizers made the states: every
layout reads what any other wrote. Plain numbers stand in the manifest beside them (`manifest.Manifest`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from efficientbench.training.checkpoints.megatron_internals import DistributedOptimizer, first_element
from efficientbench.training.checkpoints.shards import Shard, ShardedParameter
from efficientbench.training.update.muon import Muon


def _moments(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """Return what an optimizer keeps of each parameter, beside a count of updates."""
    return ("momentum",) if isinstance(optimizer, Muon) else ("exp_avg", "exp_avg_sq")


def tensors_to_write(
    parameters: list[ShardedParameter], optimizer: MegatronOptimizer, device: torch.device, everything: bool
) -> Iterator[Shard]:
    """Yield what this rank writes; `everything`: what a run needs to resume, else the weights alone."""
    for each in parameters:
        if each.writes_weight:
            yield from each.shards("model", each.parameter)
    if everything:
        yield from _optimizer_states(parameters, optimizer, to_write=True)
        yield from generators(device)


def tensors_to_read(
    parameters: list[ShardedParameter], optimizer: MegatronOptimizer, everything: bool
) -> Iterator[Shard]:
    """Yield what this rank reads, whoever wrote it, without the random generators."""
    for each in parameters:
        yield from each.shards("model", each.parameter)
    if everything:
        yield from _optimizer_states(parameters, optimizer, to_write=False)


def _optimizer_states(
    parameters: list[ShardedParameter], optimizer: MegatronOptimizer, to_write: bool
) -> Iterator[Shard]:
    """Yield masters and moments, which must be there; `to_write`: only those that this rank writes."""
    states = _states(optimizer)
    for each in parameters:
        state = states.get(each.parameter)
        if state is None or (to_write and not (each.writes_own_states if state.sharded else each.writes_weight)):
            continue
        if each.parameter.dtype != torch.float32:
            yield from each.shards("optimizer.main", state.main, state.begin)
        for moment in _moments(state.optimizer):
            tensor = state.optimizer.state[state.main][moment]
            yield from each.shards(f"optimizer.{moment}", tensor, state.begin)


@dataclass(frozen=True)
class _ParameterState:
    """What the optimizer keeps of one parameter on this rank."""

    optimizer: torch.optim.Optimizer
    main: torch.Tensor
    """What the optimizer updates: a float32 master, or the weight itself."""
    begin: int = 0
    """The first element of this rank's part of the parameter that `main` holds."""
    sharded: bool = False
    """Whether the data-parallel ranks share the states out."""


def _states(optimizer: MegatronOptimizer) -> dict[torch.nn.Parameter, _ParameterState]:
    # Each of Megatron's optimizers keeps masters in another place. They are found here, so that what is written does
    # not depend on the optimizer that wrote it.
    found = {}
    for part in optimizer.chained_optimizers:
        groups = part.optimizer.param_groups
        if isinstance(part, DistributedOptimizer):
            for parameter, (group, order) in part.model_param_group_index_map.items():
                main = groups[group]["params"][order]
                found[parameter] = _ParameterState(part.optimizer, main, first_element(part, parameter), sharded=True)
        else:
            for parameter in part.get_parameters():
                found[parameter] = _ParameterState(part.optimizer, parameter)
            for parameter in (each for group in getattr(part, "float16_groups", ()) for each in group):
                found[parameter] = _ParameterState(part.optimizer, parameter.main_param)
    return found


def fill_optimizer(optimizer: MegatronOptimizer, updates: float | None) -> None:
    """Make the states that the optimizer would make at its first update, where it has none.

    Args:
        optimizer: of this rank.
        updates: set the number of updates made; None: leave it, and take 0 where there is none.
    """
    for part in optimizer.chained_optimizers:
        for group in part.optimizer.param_groups:
            for main in group["params"]:
                state = part.optimizer.state[main]
                for moment in _moments(part.optimizer):
                    if moment not in state:
                        state[moment] = torch.zeros_like(main, memory_format=torch.preserve_format).detach()
                if updates is not None or ("step" not in state and "step" not in group):
                    _count_updates(part.optimizer, group, main, updates or 0.0)


def _count_updates(optimizer: torch.optim.Optimizer, group: dict[str, Any], main: torch.Tensor, updates: float) -> None:
    if isinstance(optimizer, Muon):
        # Its momentum is that of the run's step.
        return
    if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        # A tensor for each parameter. Megatron's own loading gives all parameters one tensor, which each of them then
        # advances: Adam's bias correction would be wrong from the second resumed step on.
        device = main.device if group["fused"] or group["capturable"] else torch.device("cpu")
        optimizer.state[main]["step"] = torch.tensor(updates, dtype=torch.float32, device=device)
    else:
        # Apex and Transformer Engine count by group.
        group["step"] = int(updates)


def updates_made(optimizer: MegatronOptimizer) -> float:
    """Return how many updates the optimizer has made; 0 where this rank has none of its states."""
    counts = [
        float(part.optimizer.state[main].get("step", group.get("step", 0)))
        for part in optimizer.chained_optimizers
        for group in part.optimizer.param_groups
        for main in group["params"][:1]
    ]
    return max(counts, default=0.0)


def loss_scale(optimizer: MegatronOptimizer) -> dict[str, Any] | None:
    """Return the state of fp16's loss scaling as plain numbers; None in other dtypes."""
    scaler = getattr(optimizer.chained_optimizers[0], "grad_scaler", None)
    if scaler is None:
        return None
    return {name: value.tolist() if torch.is_tensor(value) else value for name, value in scaler.state_dict().items()}


def set_loss_scale(optimizer: MegatronOptimizer, saved: dict[str, Any]) -> None:
    """Set every part of the optimizer to what `loss_scale` returned."""
    for part in optimizer.chained_optimizers:
        device = part.grad_scaler.scale.device
        part.grad_scaler.load_state_dict({**saved, "scale": torch.tensor(saved["scale"], device=device)})


def generators(device: torch.device) -> Iterator[Shard]:
    """Yield the states of this rank's random generators; what is read into them counts after `set_generators`.

    They are read again in the same layout only, since no layer draws from them.
    """
    tracked = {f"tracked.{name}": state for name, state in get_cuda_rng_tracker().get_states().items()}
    states = {"host": torch.get_rng_state(), **tracked}
    of_device = torch.get_device_module(device)
    if hasattr(of_device, "get_rng_state"):  # a CPU has the host's alone
        states["device"] = of_device.get_rng_state()
    for name, state in states.items():
        yield Shard(f"rng.{dist.get_rank()}.{name}", tuple(state.shape), (0,) * state.dim(), state)


def set_generators(read: list[Shard], device: torch.device) -> None:
    """Set this rank's random generators to states that `generators` named."""
    states = {shard.name.split(".", 2)[2]: shard.tensor for shard in read}
    torch.set_rng_state(states["host"])
    if "device" in states:
        torch.get_device_module(device).set_rng_state(states["device"])
    tracked = {name.partition(".")[2]: state for name, state in states.items() if name.startswith("tracked.")}
    get_cuda_rng_tracker().set_states(tracked)
