"""The kernels that multiply by weights of fewer bits: one table by device, without torch.

What a kernel stores of a weight [O, I], O = outputs, I = inputs, decides the bytes that lie in memory and that a
decoding step reads. `model/kernels/quantized.py` has the products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.basics.errors import ConfigError
from efficientbench.config.quantization import PREFIX, Quantization


@dataclass(frozen=True)
class Kernel:
    """A product with quantized weights, and what it takes and stores."""

    name: str
    """Its name in records."""
    bits: int
    groups: tuple[int, ...] = ()
    """The sizes of groups that it takes; empty: a row has one scale."""
    offsets: Literal["none", "always", "asked"] = "none"
    """Whether a group has an offset beside its scale; asked: only of a quantization that is not symmetric."""
    rows: int = 1
    """The outputs are padded to a multiple of it."""
    inputs: int = 1
    """The inputs are padded to a multiple of it, and of the group."""
    dtypes: tuple[str, ...] = tuple(DTYPE_BYTES)
    quality_only: str = ""
    """Why its time and energy say nothing; empty: they are measured."""


HALVES, GROUPS = ("bf16", "fp16"), (32, 64, 128, 256)
# Inputs by 16: in bf16 torch 2.13's loops read beyond the end of a row that their vectors do not fill.
INT8 = Kernel("torch _weight_int8pack_mm", 8, inputs=16)
INT4_CPU = Kernel("torch _weight_int4pack_mm_for_cpu", 4, groups=GROUPS, offsets="always", rows=16)
FP8_CPU = Kernel(
    "products with blocks of rows, widened one after another", 8,
    quality_only="a CPU has no products in fp8, and widens the weights for each: their quality alone can be measured "
    "(evaluate, generate, chat)",
)  # fmt: skip
# The operator and the layout of torchao 0.18's int4 weights ("tile_packed_to_4d").
INT4_CUDA = Kernel(
    "torch _weight_int4pack_mm", 4, groups=GROUPS, offsets="always", rows=8, inputs=128, dtypes=("bf16",)
)
FP8_CUDA = Kernel(
    "torch _scaled_mm, activations rounded to fp8 row by row", 8, rows=16, inputs=16, dtypes=("bf16",)
)  # fmt: skip
# torch_npu documents groups of 32 to I - 1 in steps of 32.
NPU = "torch_npu npu_weight_quant_batchmatmul"
INT8_NPU = Kernel(NPU, 8, groups=GROUPS, offsets="asked", dtypes=HALVES)
INT4_NPU = Kernel(NPU, 4, groups=GROUPS, offsets="asked", rows=8, dtypes=HALVES)

# Float16 beside bfloat16, whichever of the two the model is in.
CASTS = {dtype: Kernel(f"torch linear in {dtype}", 16) for dtype in HALVES}

KERNELS: Mapping[str, Mapping[str, Kernel | str]] = {
    "cpu": {"int8": INT8, "int4": INT4_CPU, "fp8": FP8_CPU, **CASTS},
    "cuda": {"int8": INT8, "int4": INT4_CUDA, "fp8": FP8_CUDA, **CASTS},
    "npu": {
        "int8": INT8_NPU,
        "int4": INT4_NPU,
        "fp8": "torch_npu documents weights of int8 and int4 for these NPUs: give int8 or int4",
        **CASTS,
    },
}
"""Device type → width → its kernel, or why there is none."""


@dataclass(frozen=True)
class Form:
    """The form in which a device keeps the weights of a quantization, of a model in `dtype`."""

    quantization: Quantization
    kernel: Kernel
    dtype: str

    @property
    def group(self) -> int | None:
        """Return how many weights of a row share a scale; None: the whole row."""
        return self.quantization.row_group

    @property
    def has_offsets(self) -> bool:
        """Return whether an offset is stored beside each scale."""
        return self.kernel.offsets == "always" or self.kernel.offsets == "asked" and not self.quantization.symmetric

    def padded(self, outputs: int, inputs: int) -> tuple[int, int]:
        """Return the stored outputs and inputs of a weight."""
        # The sizes of groups and the multiples of inputs are powers of two.
        columns = max(self.kernel.inputs, self.group or 1)
        return -(-outputs // self.kernel.rows) * self.kernel.rows, -(-inputs // columns) * columns

    def bytes(self, outputs: int, inputs: int) -> int:
        """Count the stored bytes of a weight [outputs, inputs]: packed weights, scales and offsets."""
        rows, columns = self.padded(outputs, inputs)
        bits, groups = self.kernel.bits, columns // (self.group or columns)
        return rows * columns * bits // 8 + rows * groups * ((bits < 16) + self.has_offsets) * DTYPE_BYTES[self.dtype]


def form_of(quantization: Quantization, device_type: str, dtype: str, measured: bool = False) -> Form:
    """Return the form of a quantization on a device type.

    Args:
        quantization: what is asked for.
        device_type: the device type.
        dtype: the model's dtype.
        measured: whether time and energy are measured.

    Raises:
        ConfigError: the device has no such kernel, or the kernel does not take these keys; the message says why.
    """
    asked = f"--weights {quantization.weights} with device={device_type}"
    kernel = KERNELS[device_type][quantization.weights]
    if isinstance(kernel, str):
        raise ConfigError(f"{asked}: {kernel}")
    group, name = quantization.row_group, kernel.name
    if group is not None and group not in kernel.groups:
        alone = "one scale for each row" if kernel.bits < 16 else "no scales"
        takes = f"groups of {', '.join(map(str, kernel.groups))}" if kernel.groups else alone
        raise ConfigError(f"{PREFIX}group={group}: {asked} is computed by {name}, which takes {takes}")
    if kernel.offsets == "none" and not quantization.symmetric:
        raise ConfigError(f"{PREFIX}symmetric=false: {asked} is computed by {name}, which takes no offsets")
    if dtype not in kernel.dtypes:
        raise ConfigError(f"{asked}: {name} computes in {' and '.join(kernel.dtypes)}, and the model is in {dtype}")
    if measured and kernel.quality_only:
        raise ConfigError(f"{asked}: {kernel.quality_only}")
    return Form(quantization, kernel, dtype)
