"""A stand-in for torch_npu, for tests on machines without an NPU. Never to be installed.

Put the folder above this one on PYTHONPATH: `import torch_npu` then gives torch a device type `npu` whose tensors the
CPU keeps and computes, the collective backend `hccl` on gloo, and kernels with the documented formulas and limits of
the real ones, in float32 (kernels.py).

Tests with it show that this project's code for NPUs runs from the command line to the record, keeps its tensors on the
device, and calls kernels correctly. They show nothing about the real kernels' numbers, the real device's memory, speed,
streams or drivers, nor about HCCL, except for the dtypes that it refuses to reduce.
"""

from __future__ import annotations

__version__ = "2.13.0"

# First, since the other modules need the device type.
from torch_npu import device  # noqa: I001
from torch_npu import hccl, npu
from torch_npu.kernels import (
    npu_convert_weight_to_int4pack,
    npu_fusion_attention,
    npu_grouped_matmul,
    npu_grouped_matmul_add_,
    npu_rms_norm,
    npu_rotary_mul,
    npu_swiglu,
    npu_weight_quant_batchmatmul,
)

__all__ = [
    "npu",
    "npu_convert_weight_to_int4pack",
    "npu_fusion_attention",
    "npu_grouped_matmul",
    "npu_grouped_matmul_add_",
    "npu_rms_norm",
    "npu_rotary_mul",
    "npu_swiglu",
    "npu_weight_quant_batchmatmul",
]

device.register(npu)
hccl.register()
