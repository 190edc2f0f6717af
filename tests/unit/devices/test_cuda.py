"""What a run on NVIDIA GPUs sets, as far as no GPU is needed for it."""

from __future__ import annotations

import pytest
import torch

from efficientbench.devices.cpu import CPU
from efficientbench.devices.cuda import CUDA
from efficientbench.devices.npu import NPU


@pytest.mark.parametrize("device", [CUDA(), NPU()])
def test_only_tensor_parallelism_has_one_queue(device: CUDA | NPU) -> None:
    alone, split = device.environment(tensor_parallel=1), device.environment(tensor_parallel=2)
    # Megatron asserts it for tensor parallelism; other modes are slower with it.
    assert dict(split) == {**alone, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in alone


def test_process_groups_are_made_for_one_device_from_the_start_on_nvidia_gpus_alone() -> None:
    """Gloo serves no device, and no documentation of HCCL speaks of it."""
    place = torch.device("cuda", 1)
    assert [each.group_device(place, 1) for each in (CUDA(), CPU(), NPU())] == [place, None, None]
    # The transfers of a pipeline's stages would wait for each other.
    assert CUDA().group_device(place, 2) is None
