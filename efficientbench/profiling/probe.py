"""This machine's rates, where the table of devices does not name it: a second of measuring."""

from __future__ import annotations

import time
from collections.abc import Callable

from efficientbench.config.schema import RunConfig
from efficientbench.metrics.hardware import DeviceRates

TIMES = 15


def probe_host(config: RunConfig, threads: int) -> DeviceRates:
    """FLOP/s of the model's largest matrix product in its dtype and bytes a second of a sum of large tensors, on the
    processor, with so many threads; the best of several."""
    import torch

    # By its name in torch, as 'bfloat16' has it.
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[config.training.dtype]
    torch.set_num_threads(threads)
    model, training = config.model, config.training
    inputs = torch.randn(training.micro_batch_size * training.seq_len, model.hidden_size).to(dtype)
    weight = torch.randn(2 * model.ffn_hidden_size, model.hidden_size).to(dtype)
    product_s = _least(lambda: inputs @ weight.t())
    large = torch.ones(2**24)
    sum_s = _least(lambda: torch.add(large, 1.0, out=large))
    return DeviceRates(
        name="this machine",
        backend="",
        peak_flops=2 * inputs.shape[0] * weight.numel() / product_s,
        memory_bytes_s=2 * large.numel() * large.element_size() / sum_s,
        memory_bytes=None,
        in_node_bytes_s=0,
        between_nodes_bytes_s=None,
        sources=(f"measured now with {threads} threads: the model's largest product, a sum of large tensors",),
    )


def _least(work: Callable[[], object]) -> float:
    times = []
    for _ in range(TIMES + 1):
        begin_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin_s)
    return min(times[1:])
