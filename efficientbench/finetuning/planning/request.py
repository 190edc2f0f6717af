"""Make the request for a plan from a configuration, without a device and without torch."""

from __future__ import annotations

from efficientbench.basics.errors import ConfigError
from efficientbench.config.layout import whole_nodes
from efficientbench.devices.registry import device_of_backend
from efficientbench.finetuning.config import TINY, TINY_SHAPE, FinetuneConfig
from efficientbench.finetuning.methods import check_layers, check_targets, find_method
from efficientbench.finetuning.planning.cost import TILE_BYTES, TRITON_TILE_BYTES, Trained, ZeroLayout
from efficientbench.finetuning.planning.plan import PlanRequest
from efficientbench.finetuning.planning.shapes import Shape, shape_of, shape_of_config
from efficientbench.finetuning.planning.step import Rates
from efficientbench.metrics.sensors.hardware import device_rates

MEMORY_GB = 64.0
"""The memory of an Ascend 910B, the default if no device is named."""


def shape_of_base(model: str) -> Shape:
    """Return the shape of a configuration's base model. Raises ConfigError: the shape is not known."""
    return shape_of_config(TINY_SHAPE) if model == TINY else shape_of(model)


def plan_request(
    config: FinetuneConfig, world: int, devices_per_node: int, device: str | None, memory_gb: float | None
) -> PlanRequest:
    """Return the request for the plan of a configuration.

    Args:
        config: the run's configuration.
        world: ranks of all nodes.
        devices_per_node: accelerators per node.
        device: a row of `metrics/sensors/hardware.yaml`; None: the plan has no times, or only compute times if
            `measurement.peak_flops` is set.
        memory_gb: a device's memory; None: the row's, or MEMORY_GB.

    Raises:
        ConfigError: the ranks do not divide the batch, the model's shape is not known, the model lacks layers that the
            method trains, or the ranks do not fill whole nodes.
        MetricsError: there is no such device.
    """
    accumulation = config.accumulation(world)
    found = device_rates(device, config.training.dtype, config.measurement.peak_flops) if device else None
    capacity = memory_gb * 1e9 if memory_gb is not None else (found.memory_bytes if found else None)
    shape = shape_of_base(config.model)
    adapter, zero = config.adapter, config.zero
    method = find_method(config.method)
    if method.formulas is None:
        raise ConfigError(f"method {config.method}: declares no formulas of its parameters, FLOPs and memory")
    if method.lora is not None:
        check_targets(adapter.targets, shape.matrices)
    if method.formulas == "freeze":
        check_layers(adapter.freeze_layers, shape.layers)
    layout = ZeroLayout(
        world=world,
        per_node=whole_nodes(world, devices_per_node)[0],
        stage=zero.stage,
        # As in DeepSpeed, a group has at most all ranks.
        hpz=min(zero.hpz, world),
        micro=config.training.micro_batch_size,
        accumulation=accumulation,
        recompute=config.training.recompute,
        offload=zero.offload,
        tokens=config.data.max_length,
        persistence=10 * shape.hidden if zero.persistence_threshold is None else zero.persistence_threshold,
        tile_bytes=_tile_bytes(found.backend if found else None),
    )
    peak = config.measurement.peak_flops
    rates = Rates("the device of measurement.peak_flops", peak) if peak is not None else None
    if found is not None:
        rates = Rates(found.name, found.peak_flops, found.in_node_bytes_s, found.between_nodes_bytes_s)
    trained = Trained(method.formulas, adapter.r, adapter.targets, adapter.freeze_layers)
    return PlanRequest(config.name, shape, trained, layout, capacity or MEMORY_GB * 1e9, rates, config.training.dtype)


def _tile_bytes(backend: str | None) -> int:
    """Return the bytes per logit while the loss is computed; `backend`: the device's, None if no device is named.

    TRL has a kernel for the loss if Triton supports the device type.
    """
    has_triton = backend is not None and device_of_backend(backend).triton
    return TRITON_TILE_BYTES if has_triton else TILE_BYTES
