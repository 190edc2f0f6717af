"""A stand-in for torch_npu, for tests on machines without an NPU. Never to be installed.

Put the folder above this one on PYTHONPATH: `import torch_npu` then gives torch a device type `npu` whose tensors are
kept and computed by the CPU, the collective backend `hccl` (gloo underneath), and kernels that are the documented
formulas of the real ones, in float32, with their limits (kernels.py).

What it shows: that this project's code for NPUs runs from the command line to the record, keeps its tensors on the
device, gives kernels what they take and makes the right use of what they return. What it does not show: anything about
the real kernels' numbers, the real device's memory, speed, streams, dtypes or drivers, and nothing about HCCL beyond
which tensors and dtypes it refuses to reduce.
"""

from __future__ import annotations

__version__ = "2.13.0"

# The device type must be known to torch before anything else here.
from torch_npu import device  # noqa: I001
from torch_npu import hccl, npu
from torch_npu.kernels import (
    npu_fusion_attention,
    npu_grouped_matmul,
    npu_grouped_matmul_add_,
    npu_rms_norm,
    npu_rotary_mul,
    npu_swiglu,
)

__all__ = [
    "npu",
    "npu_fusion_attention",
    "npu_grouped_matmul",
    "npu_grouped_matmul_add_",
    "npu_rms_norm",
    "npu_rotary_mul",
    "npu_swiglu",
]

device.register(npu)
hccl.register()
