"""What of a configuration a plan needs, without a device and without torch."""

from __future__ import annotations

from efficientbench.config.errors import ConfigError
from efficientbench.finetuning.base_model_shape import TINY_SHAPE
from efficientbench.finetuning.config import TINY, FinetuneConfig
from efficientbench.finetuning.cost import TILE_BYTES, TRITON_TILE_BYTES, Trained, ZeroLayout
from efficientbench.finetuning.methods import WITH_ADAPTER, check_targets
from efficientbench.finetuning.plan import PlanRequest, ranks_of_a_node
from efficientbench.finetuning.shapes import shape_of, shape_of_config
from efficientbench.finetuning.step import Rates
from efficientbench.metrics.hardware import device_rates

MEMORY_GB = 64.0
"""Of an Ascend 910B, where no device is named."""


def plan_request(
    config: FinetuneConfig, world: int, devices_per_node: int, device: str | None, memory_gb: float | None
) -> PlanRequest:
    """Return what is to be planned.

    Args:
        config: the run.
        world: ranks of all nodes.
        devices_per_node: accelerators of a node.
        device: a row of `metrics/hardware.yaml`; None: the plan has no times, or those of computing alone where
            `measurement.peak_flops` is set.
        memory_gb: of a device; None: the row's, or MEMORY_GB.

    Raises:
        ConfigError: the batch cannot be divided, the model's shape is not known, the model lacks a layer that is to get
            an adapter, or the ranks are not whole nodes.
        MetricsError: there is no such device.
    """
    try:
        accumulation = config.accumulation(world)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    found = device_rates(device, config.training.dtype, config.measurement.peak_flops) if device else None
    capacity = memory_gb * 1e9 if memory_gb is not None else (found.memory_bytes if found else None)
    shape = shape_of_config(TINY_SHAPE) if config.model == TINY else shape_of(config.model)
    adapter, zero = config.adapter, config.zero
    if config.method in WITH_ADAPTER:
        check_targets(adapter.targets, shape.matrices)
    layout = ZeroLayout(
        world=world,
        per_node=ranks_of_a_node(world, devices_per_node),
        stage=zero.stage,
        hpz=zero.hpz,
        micro=config.training.micro_batch_size,
        accumulation=accumulation,
        recompute=config.training.recompute,
        offload=zero.offload,
        tokens=config.data.max_length,
        persistence=10 * shape.hidden if zero.persistence_threshold is None else zero.persistence_threshold,
        # The table has GPUs alone, where the loss has its Triton kernel.
        tile_bytes=TILE_BYTES if found is None else TRITON_TILE_BYTES,
    )
    peak = config.measurement.peak_flops
    rates = Rates("the device of measurement.peak_flops", peak) if peak is not None else None
    if found is not None:
        rates = Rates(found.name, found.peak_flops, found.in_node_bytes_s, found.between_nodes_bytes_s)
    trained = Trained(config.method, adapter.r, adapter.targets, adapter.freeze_layers)
    return PlanRequest(config.name, shape, trained, layout, capacity or MEMORY_GB * 1e9, rates)
