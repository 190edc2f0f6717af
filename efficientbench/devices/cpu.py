"""The CPU with gloo: the host is one device, and its ranks share cores and memory."""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING

from efficientbench.devices.base import Device

if TYPE_CHECKING:
    import torch

CPUINFO = "/proc/cpuinfo"
"""File in which Linux describes the processors."""

AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
"""Instructions that oneDNN, torch's library of matrix products, calls avx512_core."""


class CPU(Device):
    """The host. Any number of ranks may share it."""

    type = "cpu"
    backend = "gloo"
    # Interpreter, torch, the engine and communication.
    runtime_bytes = 330_000_000
    # Megatron would load it: 70 MB.
    needless = ("triton",)
    remedy = "nothing is needed"
    tried = True

    def unavailable_reason(self) -> str | None:
        return None

    def deterministic_environment(self) -> dict[str, tuple[str, ...]]:
        # Intel's Developer Guide of oneMKL, which torch multiplies with on x86: Conditional Numerical Reproducibility.
        return {
            "MKL_CBWR": ("AUTO", "COMPATIBLE", "AVX2", "AVX512"),
            "MKL_DYNAMIC": ("FALSE",),
            "OMP_DYNAMIC": ("FALSE",),
        }

    def count(self) -> int:
        return 1

    def prepare(self, local_rank: int) -> torch.device:
        import torch

        from efficientbench.devices.cuda_shim import install

        install()
        return torch.device(self.type)

    def synchronize(self) -> None:
        """Nothing is queued on a CPU."""

    def stamp(self) -> float:
        return time.perf_counter()

    def between_s(self, begin: float, end: float) -> float:
        return end - begin

    def unsupported_dtypes(self) -> dict[str, str]:
        return {}

    def slow_dtypes(self) -> dict[str, str]:
        if multiplies_bf16() is not False:
            return {}
        return {
            "bf16": f"torch has no bf16 matrix products for {self.names()[0]} (on x86 they need AVX-512 or "
            "AVX-NE-CONVERT, on Arm bf16) and multiplies without them many times more slowly than in float32; "
            "on this CPU add training.dtype=fp32"
        }

    def memory_capacity_bytes(self) -> int | None:
        return None

    def allocator(self) -> None:
        return None

    def names(self) -> list[str]:
        return [_described("model name") or platform.processor() or platform.machine()]

    def versions(self) -> dict[str, str]:
        return {}


def multiplies_bf16() -> bool | None:
    """Return whether oneDNN multiplies bf16 matrices on this processor; None where the system does not describe it.

    Without oneDNN torch computes such products in plain loops. The conditions are oneDNN's on x86 (cpu_isa
    avx512_core or avx2_vnni_2) and torch's on Arm (mkldnn_bf16_device_check_arm).
    """
    instructions = (_described("flags") or _described("Features") or "").split()
    if not instructions:
        return None
    if AVX512.issubset(instructions) or "bf16" in instructions:
        return True
    if "avx_vnni" not in instructions:
        return False
    # Some processors with AVX-VNNI also have AVX-NE-CONVERT, which Linux does not list. torch, slow to load, finds it.
    import torch

    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def processor() -> str:
    """Return what tells this processor from others of its name: family, model and the widest vectors."""
    instructions = (_described("flags") or _described("Features") or "").split()
    vectors = next((name for name in ("avx512_bf16", "avx512f", "avx2", "sve", "asimd") if name in instructions), "")
    family = _described("cpu family") or _described("CPU implementer")
    model = _described("model") or _described("CPU part")
    return f"family {family}, model {model}, {vectors or 'no wide vectors'}"


def _described(key: str) -> str | None:
    """Return the first processor's value of a key in CPUINFO; None where the file or the key is missing."""
    try:
        with open(CPUINFO, encoding="utf-8") as cpuinfo:
            found = (line.partition(":") for line in cpuinfo)
            return next((text.strip() for name, _, text in found if name.strip() == key), None)
    except OSError:
        return None
