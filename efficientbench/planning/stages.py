"""Each pipeline stage's model as the engine builds it, on the meta device: its parameters counted, none allocated."""

from __future__ import annotations

import logging
import warnings
from math import gcd

from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.devices.cpu import CPU


def stage_parameters(config: RunConfig, layout: Layout) -> list[int]:
    """Parameters that a rank of each pipeline stage holds, counted in the engine's own model.

    Builds the process groups of one replica (of as many as experts are shared over) with a backend that sends nothing:
    further replicas hold the same. Changes this process's torch and engine for good, as a run on a CPU does.
    """
    CPU().prepare(0)
    with warnings.catch_warnings():
        # Of the engine, about what it would do with optional packages.
        warnings.simplefilter("ignore")
        logging.getLogger("megatron").setLevel(logging.ERROR)
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        per_stage = layout.tp * layout.cp * (layout.ep // gcd(layout.ep, layout.cp))
        counts = []
        for stage in range(layout.pp):
            dist.init_process_group("fake", store=FakeStore(), rank=stage * per_stage, world_size=layout.pp * per_stage)
            try:
                counts.append(_held_here(config))
            finally:
                dist.destroy_process_group()
    return counts


def _held_here(config: RunConfig) -> int:
    from efficientbench.model.gpt import stages_on_meta
    from efficientbench.training import groups

    with groups.model_parallel(config.parallel, config.training.seed):
        stages = stages_on_meta(config)
    return sum(parameter.numel() for stage in stages for parameter in stage.parameters())
