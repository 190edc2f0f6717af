"""Functions for a process of their own, since they change torch and the engine for the whole process."""

from __future__ import annotations

from pathlib import Path

from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig


def peak_memory_bytes() -> int:
    """Return the peak memory of this process; getrusage would start from its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024


def engine_groups(config: RunConfig, layout: Layout, rank: int) -> dict[str, list[int]]:
    """Return the groups that the engine puts a rank into, by the names of rank_grid."""
    from efficientbench.devices.cpu import CPU

    CPU().prepare(0)
    import torch.distributed as dist
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from efficientbench.training import groups

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    with groups.model_parallel(config.parallel, seed=0):
        found = {
            "tp": parallel_state.get_tensor_model_parallel_group(),
            "cp": parallel_state.get_context_parallel_group(),
            "tp × cp": parallel_state.get_tensor_and_context_parallel_group(),
            "dp": parallel_state.get_data_parallel_group(with_context_parallel=True),
            "pp": parallel_state.get_pipeline_model_parallel_group(),
            "embedding": parallel_state.get_embedding_group(check_initialized=False),
            "ep": parallel_state.get_expert_model_parallel_group(),
            "expert dp": parallel_state.get_expert_data_parallel_group(),
        }
        ranks = {kind: dist.get_process_group_ranks(group) for kind, group in found.items() if group is not None}
    dist.destroy_process_group()
    return ranks
