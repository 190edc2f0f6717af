"""The peak of a device: known, or for devices whose peak is in no table the rate of matrix products that they reach."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.metrics.sensors.hardware import peak_flops

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SMALLEST, LARGEST = 512, 8192
"""Rows and columns of the smallest and largest matrices tried: devices reach their best rate at different sizes."""
LONG_ENOUGH_S = 0.005
"""A product that takes this long fills the device: larger matrices are not tried."""
FEWEST_PRODUCTS, LEAST_S = 3, 0.05
"""Least number of products, and least time for them, at each size."""


Peak = tuple[float | None, str, float | None]
"""One device's peak FLOP/s, or None; its source, or why it is not known; and FLOP/s measured where it is not known."""


def known_or_measured(given: float | None, name: str, dtype: str, place: torch.device, devices: int) -> Peak:
    """Return the peak of one device: the configured one, else its table's, else the rate of products on all of them.

    All ranks must call this together, before a model takes their memory.

    Args:
        given: the configured peak, FLOP/s; None: none is configured.
        name: the product name of the device.
        dtype: the compute dtype.
        place: this rank's device, on which products are timed.
        devices: the number of devices of all ranks.
    """
    peak, source = given, "configuration (measurement.peak_flops)"
    if peak is None:
        peak, source = peak_flops(name, dtype)
    measured = None
    # All ranks together, also where only some have no peak: the ranks of a host share its cores.
    if any(gather(peak is None, bool)):
        measured = sum(gather(measured_matmul_flops(place, dtype), float)) / devices
    return peak, source, None if peak else measured


def measured_matmul_flops(device: torch.device, dtype: str) -> float:
    """Return the FLOP/s of the fastest of many square products [n, n] · [n, n] on one device.

    The rate is an achieved one, below a datasheet's peak. The program's random state does not change.
    """
    size, reached = SMALLEST, 0.0
    while True:
        product_s = _fastest_s(size, device, DTYPES[dtype])
        reached = max(reached, 2 * size**3 / product_s)
        if product_s >= LONG_ENOUGH_S or size == LARGEST:
            break
        size *= 2
    if device.type != "cpu":
        torch.get_device_module(device.type).empty_cache()
    return reached


def _fastest_s(size: int, device: torch.device, dtype: torch.dtype) -> float:
    """Return the time of the fastest product of this size, s, after one untimed product of each kind."""
    # Drawn on the CPU, with repeated rows: a device's own generator would change the run's random numbers.
    rows = torch.randn(64, size, generator=torch.Generator().manual_seed(0))
    factor = rows.repeat(size // 64, 1).to(device=device, dtype=dtype)
    synchronize = torch.get_device_module(device.type).synchronize
    times_s: list[float] = []
    for multiply in _products(factor):
        multiply()
        synchronize()
        products, begin_s = 0, time.perf_counter()
        while products < FEWEST_PRODUCTS or time.perf_counter() - begin_s < LEAST_S:
            product_begin_s = time.perf_counter()
            multiply()
            synchronize()
            times_s.append(time.perf_counter() - product_begin_s)
            products += 1
    return min(times_s)


def _products(factor: torch.Tensor) -> list[Callable[[], object]]:
    """Return torch's product and, in float32 on a CPU, oneDNN's: torch may use a slower library there."""
    found: list[Callable[[], object]] = [partial(torch.mm, factor, factor, out=torch.empty_like(factor))]
    if (factor.device.type, factor.dtype) == ("cpu", torch.float32) and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        found.append(partial(torch.ops.mkldnn._linear_pointwise, factor, factor, None, "none", [], ""))
    return found
