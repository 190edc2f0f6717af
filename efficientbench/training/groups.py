"""The process groups of ranks: only this file makes and destroys them."""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
import os
import socket
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from packaging.version import Version

from efficientbench.config.parallel import ParallelConfig

HANG_LIMIT_S = 600.0
"""The default time that a collective may wait for a rank."""
LOOPBACK = "127.0.0.1"
"""The address at which the ranks of one machine meet."""
MARGIN_S = 60.0
"""Margin of the backend's time-out over the hang limit: the launcher acts first, since it can name the missing rank."""


@contextlib.contextmanager
def world(backend: str, hang_limit_s: float = HANG_LIMIT_S, bound_to: torch.device | None = None) -> Iterator[None]:
    """Start torch.distributed over the ranks that the environment describes (RANK, WORLD_SIZE, MASTER_*).

    Args:
        backend: torch.distributed's name of the backend.
        hang_limit_s: how long a collective may wait for a rank, in seconds.
        bound_to: this rank's device, to connect all ranks at once; None: at the first collective.
    """
    timeout = datetime.timedelta(seconds=hang_limit_s + MARGIN_S)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = _store(rank, size, timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout, device_id=bound_to)
    yield
    # Not after an error: a rank that failed reports the error and ends, without waiting for the others.
    dist.destroy_process_group()


@contextlib.contextmanager
def one_rank(backend: str) -> Iterator[None]:
    """Make a world of this process alone, with Megatron's process groups."""
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        with model_parallel(ParallelConfig(), seed=0):
            yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def model_parallel(parallel: ParallelConfig, seed: int, hang_limit_s: float = HANG_LIMIT_S) -> Iterator[None]:
    """Make Megatron's process groups for one layout, over all ranks of the world."""
    world = dist.distributed_c10d._get_default_group()
    # Bound to a device, each of some thirty groups would take the memory of a communicator there at once, used or not.
    world.bound_device_id, bound_to = None, world.bound_device_id
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tp,
        context_parallel_size=parallel.cp,
        pipeline_model_parallel_size=parallel.pp,
        expert_model_parallel_size=parallel.ep,
        # With ep 1 and tp above 1, a size of one would leave the experts' gradients unreduced over the tp ranks.
        expert_tensor_parallel_size=parallel.expert_tp,
        virtual_pipeline_model_parallel_size=parallel.vpp if parallel.vpp > 1 else None,
        create_gloo_process_groups=False,
        distributed_timeout_minutes=math.ceil((hang_limit_s + MARGIN_S) / 60),
    )
    world.bound_device_id = bound_to
    model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()


def own_group(lists: Sequence[Sequence[int]]) -> dist.ProcessGroup | None:
    """Make a group of each list of ranks; return this rank's, or None where it is in none. All ranks call this."""
    own = None
    for ranks in lists:
        made = dist.new_group(list(ranks))
        own = made if dist.get_rank() in ranks else own
    return own


@contextlib.contextmanager
def group_for_a_while() -> Iterator[dist.ProcessGroup]:
    """Make a group of all ranks, whose communicators give their memory back after the block. All ranks call this."""
    group = dist.new_group()
    yield group
    dist.destroy_process_group(group)


def _store(rank: int, size: int, timeout: datetime.timedelta) -> dist.Store:
    """Return the store through which the ranks meet at MASTER_ADDR and MASTER_PORT.

    torch's store listens on every interface, and whoever reaches it can read and write it. If the ranks meet on this
    machine's loopback, the store listens there alone.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    meet = functools.partial(dist.TCPStore, address, port, size, timeout=timeout)
    if rank != 0:
        return meet(is_master=False)
    if address != LOOPBACK:
        return meet(is_master=True)
    # The launcher reserves the port by a socket that is bound and does not listen, which this flag allows.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(size)
        # libuv's store takes a socket that is there since torch 2.8.
        libuv = Version(torch.__version__) >= Version("2.8")
        return meet(is_master=True, master_listen_fd=listener.detach(), use_libuv=libuv)


def meet_on_host(name: str) -> None:
    """Wait for all ranks through the store, because devices spin while a collective waits; each `name` works once."""
    store = dist.distributed_c10d._get_default_store()
    if store.add(f"{name}: arrived", 1) == dist.get_world_size():
        store.set(f"{name}: complete", "1")
    store.wait([f"{name}: complete"])


def any_rank(here: bool, device: torch.device) -> bool:
    """Return whether `here` is true on any rank; all ranks call this together. `device`: this rank's device."""
    found = torch.tensor([int(here)], dtype=torch.int32, device=device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found)


def gather_rows(values: torch.Tensor) -> torch.Tensor:
    """Gather each rank's [n] into [ranks, n], in the order of ranks; the host does not wait for the device."""
    gathered = values.new_empty(dist.get_world_size() * values.numel())
    dist.all_gather_into_tensor(gathered, values)
    return gathered.view(-1, values.numel())


def sum_over_ranks(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the element-wise sum over all ranks of float64 values on the host, sent through this rank's device.

    NPUs have no float64 (a cast returns float32, with a warning), and HCCL does not reduce it. So the bits are
    gathered, and the host sums the values in the order of ranks.
    """
    bits = values.contiguous().view(torch.int32).flatten().to(device)
    return gather_rows(bits).cpu().view(torch.float64).view(-1, *values.shape).sum(dim=0)


def replica() -> tuple[int, int]:
    """Return the number of this rank's data-parallel replica, and the number of replicas."""
    return parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()


def holds_loss() -> bool:
    """Return whether this rank's loss counts: it is on the last stage and the first tensor-parallel rank."""
    return parallel_state.is_pipeline_last_stage() and parallel_state.get_tensor_model_parallel_rank() == 0


def reads_batches(vp_stage: int | None) -> bool:
    """Return whether a stage of this rank needs tokens or labels.

    `vp_stage`: number of the virtual stage on its rank; None where the rank has one stage.
    """
    return any(
        is_stage(ignore_virtual=False, vp_stage=vp_stage)
        for is_stage in (parallel_state.is_pipeline_first_stage, parallel_state.is_pipeline_last_stage)
    )
