"""Kernels compiled for GPUs that are not there, of Hopper and of Blackwell: they fit, and keep what they hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from replicas.fake_cuda.processes import run

pytestmark = pytest.mark.proof

MOST_SHARED_BYTES = 232_448
"""What a block of threads can have of a multiprocessor's memory: 227 KiB on both."""
MOST_STACK_BYTES = 512
"""Registers of a thread that lie in memory instead: what 128 of them hold."""
FLEX = {"triton_tem_fused": 2}
SELECTED = {"parallel_nsa_fwd_kernel": 2, "parallel_nsa_bwd_kernel_dq": 2, "parallel_nsa_bwd_kernel_dkv": 2}
BIASED = {**FLEX, "_sum_band": 1}
WITH_SINKS = {"triton_tem_fused": 1, "triton_": 6}
"""FlexAttention's for its gradients (for its output it is the one of `window`, which is not compiled again), a kernel
that scales its output, and those for the gradients of that and of the sinks."""
BY_HEADS = {
    **{"causal": FLEX, "window": FLEX, "sinks": WITH_SINKS, "compressed": FLEX, "selected": SELECTED},
    "biased": BIASED,
}
RECURRENT = {
    "gdn": {"chunk_gated_delta_rule_fwd_kernel_h": 2, "prepare_wy_repr_bwd_kernel": 1, "chunk_bwd_kernel_dqkwg": 2},
    "kda": {"chunk_gated_delta_rule_fwd_kernel_h": 2, "chunk_kda_bwd_kernel": 6},
    "mamba2": {"chunk_fwd_kernel_h": 2, "chunk_bwd_kernel_dh": 2, "chunk_bwd_kernel_dqkwg": 2},
}
PARTS = {
    "small": {"triton_": 18},
    "mla": FLEX,
    "narrow": FLEX,
    "narrow_biased": BIASED,
    **RECURRENT,
    **BY_HEADS,
    **{f"{part}_64": least for part, least in BY_HEADS.items()},
}
"""Part → how many kernels of a name it has at least, each configuration by itself."""


@pytest.mark.parametrize("heads", ["128", "64"])
@pytest.mark.parametrize("major", [9, 10])
def test_kernels_fit(major: int, heads: str, fake_gpu: Path) -> None:
    parts = [part for part in PARTS if part.endswith("_64") == (heads == "64")]
    found = run("compile.py", fake_gpu, str(major), *parts)
    assert found.keys() == set(parts)
    for part, kernels in found.items():
        for name, least in PARTS[part].items():
            assert sum(each["name"].startswith(name) for each in kernels) >= least, (part, name, kernels)
        # Of several configurations of a kernel, the fastest is chosen on the GPU: one at least has to fit.
        fit = {
            each["name"]
            for each in kernels
            if each["shared"] <= MOST_SHARED_BYTES and each["stack"] <= MOST_STACK_BYTES
        }
        assert [each for each in kernels if each["name"] not in fit] == [], part
    # Inductor would lay out padded queries in another order than FlexAttention's kernel then reads.
    assert [
        kernel["name"] for kernels in found.values() for kernel in kernels if "constant_pad" in kernel["name"]
    ] == []
    # A bias has fewer elements than there are scores: their gradients are summed before they meet. Recurrences
    # add in one order for each size of tiles.
    without = [part for part in parts if "biased" in part or part in RECURRENT]
    assert [kernel for part in without for kernel in found[part] if kernel["atomics"]] == []
