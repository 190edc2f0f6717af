"""The contents of a checkpoint: `tensors_to_write` decides, and `tensors_to_read` asks for the same names again.

Weights, the optimizer's states and random generators are stored as named rectangles (`shards`). Their names are
`model.<global name>` (of persistent buffers too), `optimizer.main.<…>` (float32 masters of bf16 and fp16 weights),
`optimizer.exp_avg.<…>` and `optimizer.exp_avg_sq.<…>` (AdamW's moments), `optimizer.momentum.<…>` (Muon's),
`shares.<router's weight>` (a router's `shares`), and `rng.<rank>.<generator>`. Weights and states have the same names
in every layout and under each of Megatron's optimizers, so every layout reads what any other wrote. Plain numbers are
in the manifest (`manifest.Manifest`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    """Return the names of an optimizer's states of each parameter, without the count of updates."""
    return ("momentum",) if isinstance(optimizer, Muon) else ("exp_avg", "exp_avg_sq")


def tensors_to_write(
    parameters: list[ShardedParameter], optimizer: MegatronOptimizer, device: torch.device, everything: bool
) -> Iterator[Shard]:
    """Yield the shards that this rank writes; `everything`: all that a run needs to resume, else the weights alone."""
    for each in parameters:
        if each.writes_weight:
            yield from each.shards("model", each.parameter)
    if everything:
        yield from _optimizer_states(parameters, optimizer, to_write=True)
        yield from _shares(each for each in parameters if each.writes_weight)
        yield from generators(device)


def tensors_to_read(
    parameters: list[ShardedParameter], optimizer: MegatronOptimizer, everything: bool
) -> Iterator[Shard]:
    """Yield the shards that this rank reads, whichever rank wrote them, without random generators."""
    for each in parameters:
        yield from each.shards("model", each.parameter)
    if everything:
        yield from _optimizer_states(parameters, optimizer, to_write=False)
        yield from _shares(parameters)


def _shares(parameters: Iterable[ShardedParameter]) -> Iterator[Shard]:
    """Yield the routers' shares of the step before."""
    for each in parameters:
        if each.shares is not None:
            yield Shard(f"shares.{each.blocks[0].name}", tuple(each.shares.shape), (0,), each.shares)


def _optimizer_states(
    parameters: list[ShardedParameter], optimizer: MegatronOptimizer, to_write: bool
) -> Iterator[Shard]:
    """Yield masters and moments, which must exist already; `to_write`: only those that this rank writes."""
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
    """The optimizer's states of one parameter on this rank."""

    optimizer: torch.optim.Optimizer
    """The torch optimizer that updates the parameter."""
    main: torch.Tensor
    """The tensor that the optimizer updates: a float32 master, or the weight itself."""
    begin: int = 0
    """The position of `main`'s first element in this rank's part of the parameter."""
    sharded: bool = False
    """Whether the data-parallel ranks split the states."""


def _states(optimizer: MegatronOptimizer) -> dict[torch.Tensor, _ParameterState]:
    # Each of Megatron's optimizers keeps masters elsewhere; here they get one form, so that a checkpoint does not
    # depend on the optimizer that wrote it.
    found: dict[torch.Tensor, _ParameterState] = {}
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
    """Make the missing states that the optimizer would make at its first update.

    Args:
        optimizer: this rank's optimizer.
        updates: the number of updates to set; None: keep the counts, and set missing ones to 0.
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
        # Muon counts no updates: its momentum follows from the run's step.
        return
    if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        # A separate tensor for each parameter. Megatron's own loading gives all parameters one tensor, which each of
        # them then advances: Adam's bias correction would be wrong from the second resumed step on.
        device = main.device if group["fused"] or group["capturable"] else torch.device("cpu")
        optimizer.state[main]["step"] = torch.tensor(updates, dtype=torch.float32, device=device)
    else:
        # Apex and Transformer Engine count by group.
        group["step"] = int(updates)


def updates_made(optimizer: MegatronOptimizer) -> float:
    """Return the number of updates that the optimizer has made; 0 if this rank has none of its states."""
    counts = [
        float(part.optimizer.state[main].get("step", group.get("step", 0)))
        for part in optimizer.chained_optimizers
        for group in part.optimizer.param_groups
        for main in group["params"][:1]
    ]
    return max(counts, default=0.0)


def loss_scale(optimizer: MegatronOptimizer) -> dict[str, Any] | None:
    """Return the state of fp16's loss scaler as plain numbers; None for other dtypes."""
    scaler = getattr(optimizer.chained_optimizers[0], "grad_scaler", None)
    if scaler is None:
        return None
    return {name: value.tolist() if torch.is_tensor(value) else value for name, value in scaler.state_dict().items()}


def set_loss_scale(optimizer: MegatronOptimizer, saved: dict[str, Any]) -> None:
    """Set the loss scaler of every part of the optimizer to a state from `loss_scale`."""
    for part in optimizer.chained_optimizers:
        device = part.grad_scaler.scale.device
        part.grad_scaler.load_state_dict({**saved, "scale": torch.tensor(saved["scale"], device=device)})


def generators(device: torch.device) -> Iterator[Shard]:
    """Yield the states of this rank's random generators; after reading into them, call `set_generators`.

    They are read only in the same layout. Another layout does without them, since no layer draws random numbers.
    """
    tracked = {f"tracked.{name}": state for name, state in get_cuda_rng_tracker().get_states().items()}
    states = {"host": torch.get_rng_state(), **tracked}
    of_device = torch.get_device_module(device)
    if hasattr(of_device, "get_rng_state"):  # a CPU has the host's alone
        states["device"] = of_device.get_rng_state()
    for name, state in states.items():
        yield Shard(f"rng.{dist.get_rank()}.{name}", tuple(state.shape), (0,) * state.dim(), state)


def set_generators(read: list[Shard], device: torch.device) -> None:
    """Set this rank's random generators to the states of `read`, which have the names of `generators`."""
    states = {shard.name.split(".", 2)[2]: shard.tensor for shard in read}
    torch.set_rng_state(states["host"])
    if "device" in states:
        torch.get_device_module(device).set_rng_state(states["device"])
    tracked = {name.partition(".")[2]: state for name, state in states.items() if name.startswith("tracked.")}
    get_cuda_rng_tracker().set_states(tracked)
