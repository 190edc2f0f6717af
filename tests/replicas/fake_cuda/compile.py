"""Compile kernels of GPUs that are not there, and print as JSON what each of them needs of a GPU.

    python compile.py LIBRARY MAJOR PART...

MAJOR is that of the compute capability: 9 for Hopper, 10 for Blackwell of data centres. Parts: see `PARTS`. The shapes
are those of the matrix at 1.5B in bf16; parts whose names end in `_64` have the heads of 0.5B. torch.compile,
FlexAttention, Triton and ptxas are the real ones; kernels are compiled and not run.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ctypes.CDLL(sys.argv[1])  # before torch is imported

# What is compiled is compiled here and now.
CACHE = tempfile.TemporaryDirectory()
os.environ |= {"TORCHINDUCTOR_CACHE_DIR": CACHE.name, "TRITON_CACHE_DIR": CACHE.name}

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import triton
from replicas.fake_cuda import names

names.CAPABILITY = (int(sys.argv[2]), 0)
names.install()

import torch._functorch.config
import torch._inductor.compile_fx as inductor_compiler
import torch._inductor.config
import torch.utils._triton
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.compiler import compiler as triton_compiler
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import KernelInterface

from efficientbench.model.kernels import (
    bias_gradient_triton,
    biased_attention_flex,
    cross_entropy,
    flex,
    norm,
    recurrence_fla,
    relu2,
    rope,
)
from efficientbench.model.kernels import swiglu as activation
from efficientbench.model.kernels.fusion import fused
from efficientbench.model.kernels.nsa import choose_blocks, gate, range_attention_flex, selected_attention_fla
from efficientbench.model.kernels.nsa.choose_blocks import Choice
from efficientbench.model.kernels.nsa.reach import Reach

TARGET = GPUTarget("cuda", 10 * int(sys.argv[2]), 32)


class Heads(NamedTuple):
    """Query heads, groups of them with a key and a value, and the dimension of each."""

    count: int
    groups: int
    dim: int


LARGE, SMALL = Heads(12, 2, 128), Heads(14, 2, 64)
SEQUENCE, BATCH, HIDDEN, FFN, VOCABULARY = 2048, 2, 1536, 8960, 151_936
WINDOW, PAST = Reach(width=512), Reach(32, 16)
COMPRESSED = (SEQUENCE - PAST.length) // PAST.stride + 1
torch._C._cuda_getCurrentRawStream = lambda device: 0
KERNELS: list[dict[str, Any]] = []


class Driver:
    """What Triton asks of a driver before it launches anything."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return names.DEVICE

    def get_device_interface(self) -> Any:
        return torch.cuda

    def is_active(self) -> bool:
        return True


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16, trained: bool = False) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=names.DEVICE, requires_grad=trained)


def note(compile_kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return triton's compiler, which notes what each kernel needs."""

    def compile_and_note(source: Any, target: GPUTarget, options: Any = None, **more: Any) -> Any:
        assert target == TARGET, target
        kernel = compile_kernel(source, target=target, options=options, **more)
        with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
            cubin.write(kernel.asm["cubin"])
            cubin.flush()
            command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin.name]
            usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        needs = {key.lower(): int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
        atomics = len(re.findall(r"\b(?:atom|red)\.", kernel.asm["ptx"]))
        KERNELS.append({"name": source.name, "shared": kernel.metadata.shared, "atomics": atomics, **needs})
        return kernel

    return compile_and_note


def prepare() -> None:
    """Let torch.compile and Triton compile for the target, and launch nothing."""
    triton.runtime.driver.set_active(Driver())
    triton.compile = triton.compiler.compile = triton_compiler.compile = note(triton_compiler.compile)
    triton_helpers.set_driver_to_gpu = lambda: None
    for module in list(sys.modules.values()):
        for name in ("has_triton", "has_triton_package"):
            if (getattr(module, "__name__", "") or "").startswith("torch") and hasattr(module, name):
                setattr(module, name, lambda *arguments: True)
    for name in ("use_static_triton_launcher", "use_static_cuda_launcher"):
        setattr(torch._inductor.config, name, False)
    torch._inductor.config.compile_threads = 1
    # Folding computes on the device.
    torch._inductor.config.joint_graph_constant_folding = False
    torch._inductor.config.fx_graph_cache = False
    torch._functorch.config.enable_autograd_cache = False
    torch._functorch.config.force_non_lazy_backward_lowering = True
    precompile = CachingAutotuner.precompile
    CachingAutotuner.precompile = lambda self, **options: precompile(self, warm_cache_only=True)
    compile_graph = inductor_compiler._compile_fx_inner

    def with_a_gpu(*arguments: Any, **options: Any) -> Any:
        torch.cuda.is_available = lambda: True
        try:
            return compile_graph(*arguments, **options)
        finally:
            torch.cuda.is_available = lambda: False

    inductor_compiler._compile_fx_inner = with_a_gpu

    def launch(kernel: Any, grid: Any) -> Any:
        def dtype_of(argument: Any) -> Any:
            return argument.dtype if isinstance(argument, torch.Tensor) else argument

        return lambda *arguments, **options: kernel.run(
            *(triton.runtime.jit.MockTensor.wrap_dtype(dtype_of(each)) for each in arguments),
            grid=grid,
            warmup=True,
            **{key: triton.runtime.jit.MockTensor.wrap_dtype(dtype_of(each)) for key, each in options.items()},
        )

    def run_ends(kernel: Autotuner, *arguments: Any, **options: Any) -> None:
        # Of the configurations among which a GPU would choose by time, the last has the largest block and most threads.
        for configuration in (kernel.configs[0], kernel.configs[-1]):
            kernel.fn.run(*arguments, **options, **configuration.all_kwargs())

    KernelInterface.__getitem__, Autotuner.run = launch, run_ends


def compiled(function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function that torch.compile compiles, up to its first launch."""
    before = len(KERNELS)
    try:
        function(*arguments)
    except Exception:
        if len(KERNELS) == before:
            raise


def small() -> None:
    """Norm, rotation, activations, loss and NSA's choice of blocks."""
    x, weight, gate_up = tensor(SEQUENCE, BATCH, HIDDEN), tensor(HIDDEN), tensor(SEQUENCE, BATCH, 2 * FFN)
    heads, groups, dim = LARGE
    angles = tensor(SEQUENCE, 1, 1, dim // 2, dtype=torch.float32)
    compiled(fused(norm._normalize), x, weight, 1e-6)
    factor = tensor(SEQUENCE, BATCH, 1, dtype=torch.float32)
    compiled(fused(norm._normalize_backward), x, x, weight, factor)
    compiled(fused(norm._normalize), x, None, 1e-6)
    compiled(fused(norm._normalize_backward), x, x, None, factor)
    compiled(fused(norm._add_and_normalize), x, x, weight, 1e-6)
    compiled(fused(norm._add_and_normalize_backward), x, x, x, weight, factor)
    compiled(fused(rope._rotate_whole), tensor(SEQUENCE, BATCH, heads, dim), angles, angles, False)
    compiled(fused(activation._activate), gate_up)
    compiled(fused(activation._activate_backward), tensor(SEQUENCE, BATCH, FFN), gate_up)
    compiled(fused(relu2._activate), tensor(SEQUENCE, BATCH, FFN))
    compiled(fused(relu2._activate_backward), tensor(SEQUENCE, BATCH, FFN), tensor(SEQUENCE, BATCH, FFN))
    logits, labels = tensor(1766, VOCABULARY), tensor(1766, dtype=torch.int64)
    rows = tensor(1766, dtype=torch.float32)
    for softcap in (None, 15.0):
        compiled(fused(cross_entropy._statistics), logits, labels, softcap)
        compiled(fused(cross_entropy._grad_logits), logits, labels, rows, rows, softcap)
    sequences, group = BATCH * groups, heads // groups
    scores = tensor(sequences, SEQUENCE * group, COMPRESSED)
    log_sums = tensor(sequences, SEQUENCE, group, dtype=torch.float32)
    compiled(fused(choose_blocks._weights), scores, log_sums, 0.1, 0, PAST)
    probabilities = tensor(sequences, SEQUENCE, COMPRESSED, dtype=torch.float32)
    compiled(fused(choose_blocks._ranking), probabilities, 0, SEQUENCE // 64, Choice(64, 16, 32, 16))
    best, chosen = (tensor(sequences, SEQUENCE, 16, dtype=dtype) for dtype in (torch.float32, torch.int64))
    compiled(fused(choose_blocks._marked), best, chosen)
    gates, branch = tensor(3, sequences, SEQUENCE, group, 1), tensor(sequences, SEQUENCE, group, dim)
    compiled(fused(gate._gate), gates, branch, branch, branch)
    compiled(fused(gate._gate_backward), branch, gates, branch, branch, branch)


def branch(reach: Reach, keys: int, heads: Heads, sinks: bool = False) -> None:
    """Attention to a window, or one of NSA's branches, by FlexAttention, forward and backward.

    The compressed branch returns its sums; a window may have sinks.
    """
    query = tensor(BATCH * heads.groups, SEQUENCE, heads.count // heads.groups, heads.dim, trained=True)
    key, value = (tensor(BATCH * heads.groups, keys, heads.dim, trained=True) for _ in range(2))
    kernel = range_attention_flex
    attend = kernel.range_attention if reach is WINDOW else kernel.range_attention_with_sums
    if sinks:
        scores = tensor(BATCH * heads.groups, heads.count // heads.groups, trained=True)
        compiled(kernel.range_attention_with_sinks, query, key, value, scores, 0.1, reach)
    else:
        compiled(attend, query, key, value, 0.1, reach)


def selected(heads: Heads) -> None:
    """NSA's selected branch by fla-core, forward and backward."""
    query = tensor(BATCH * heads.groups, SEQUENCE, heads.count // heads.groups, heads.dim, trained=True)
    key, value = (tensor(BATCH * heads.groups, SEQUENCE, heads.dim, trained=True) for _ in range(2))
    chosen = tensor(BATCH * heads.groups, SEQUENCE, 16, dtype=torch.int64)
    selected_attention_fla.SelectedAttention.apply(query, key, value, chosen, 64, 0.1).sum().backward()


def recurrent(rule: recurrence_fla.Rule, groups: int, repeats: int, key_dim: int, value_dim: int) -> None:
    """A recurrence by fla-core, forward and backward."""
    heads, wide = groups * repeats, torch.float32
    query, key = (tensor(SEQUENCE, BATCH, groups, key_dim, trained=True) for _ in range(2))
    value = tensor(SEQUENCE, BATCH, heads, value_dim, trained=True)
    channels = (key_dim,) if rule is recurrence_fla.BY_CHANNEL else ()
    decay = tensor(SEQUENCE, BATCH, heads, *channels, dtype=wide, trained=True)
    beta = None if rule is recurrence_fla.VALUES else tensor(SEQUENCE, BATCH, heads, dtype=wide, trained=True)
    recurrence_fla.recurrence(rule, query, key, value, decay, beta, None)[0].sum().backward()


def biased(heads: Heads) -> None:
    """Attention with a trained bias: FlexAttention forward and backward, and the bias's gradient by our kernel."""
    query, *keys = (
        tensor(SEQUENCE, BATCH, count, heads.dim, trained=True) for count in (heads.count, heads.groups, heads.groups)
    )
    bias = tensor(heads.count, SEQUENCE, dtype=torch.float32, trained=True)
    compiled(biased_attention_flex.attend, query, *keys, 0.1, bias)
    log_sums = tensor(BATCH, heads.count, SEQUENCE, dtype=torch.float32)
    bias_gradient_triton.bias_gradient(query, query, query, *keys, bias, log_sums, 0.1)


def causal(heads: Heads, query_dim: int | None = None) -> None:
    """Plain causal attention by FlexAttention, forward and backward; with `query_dim` keys are as wide as that."""
    query = tensor(SEQUENCE, BATCH, heads.count, query_dim or heads.dim, trained=True)
    key = tensor(SEQUENCE, BATCH, heads.groups, query_dim or heads.dim, trained=True)
    value = tensor(SEQUENCE, BATCH, heads.groups, heads.dim, trained=True)
    compiled(flex.causal_attention, query, key, value, 0.1)


BY_HEADS: dict[str, Callable[[Heads], None]] = {
    "causal": causal,
    "window": partial(branch, WINDOW, SEQUENCE),
    "sinks": partial(branch, WINDOW, SEQUENCE, sinks=True),
    "compressed": partial(branch, PAST, COMPRESSED),
    "selected": selected,
    "biased": biased,
}
PARTS: dict[str, Callable[[], None]] = {
    "small": small,
    "mla": lambda: causal(Heads(12, 12, 128), 192),
    "narrow": lambda: causal(Heads(4, 2, 12)),
    "narrow_biased": lambda: biased(Heads(4, 2, 12)),
    "gdn": lambda: recurrent(recurrence_fla.DELTA, 6, 1, 128, 256),
    "kda": lambda: recurrent(recurrence_fla.BY_CHANNEL, 12, 1, 128, 128),
    "mamba2": lambda: recurrent(recurrence_fla.VALUES, 1, 48, 128, 64),
    **{part: partial(compile_part, LARGE) for part, compile_part in BY_HEADS.items()},
    **{f"{part}_64": partial(compile_part, SMALL) for part, compile_part in BY_HEADS.items()},
}


def main() -> None:
    prepare()
    found = {}
    with FakeTensorMode():
        for part in sys.argv[3:]:
            KERNELS.clear()
            PARTS[part]()
            found[part] = list(KERNELS)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
