"""What a run on NVIDIA GPUs sets, as far as no GPU is needed for it."""

from __future__ import annotations

import pytest

from efficientbench.devices.cuda import CUDA
from efficientbench.devices.npu import NPU


@pytest.mark.parametrize("device", [CUDA(), NPU()])
def test_only_tensor_parallelism_has_one_queue(device: CUDA | NPU) -> None:
    alone, split = device.environment(tensor_parallel=1), device.environment(tensor_parallel=2)
    # Megatron asserts it for tensor parallelism; other modes are slower with it.
    assert dict(split) == {**alone, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in alone
