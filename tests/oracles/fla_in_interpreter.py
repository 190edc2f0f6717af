"""Run as a script: the largest errors of fla-core's kernel, in Triton's interpreter, against fla-core's naive one."""

from __future__ import annotations

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch
from fla.ops.nsa.naive import naive_nsa_selection
from fla.ops.nsa.parallel import parallel_nsa  # noqa: F401 (loads the kernels)
from triton.runtime.autotuner import Autotuner

from efficientbench.model.kernels.nsa import selected_attention_fla as nsa_fla


def settle_autotuners() -> None:
    """Choosing a configuration needs a GPU to time it on: leave each kernel its first."""
    for name, module in list(sys.modules.items()):
        for kernel in vars(module).values() if name.startswith("fla.") else ():
            while hasattr(kernel, "fn"):
                if isinstance(kernel, Autotuner):
                    kernel.configs = kernel.configs[:1]
                kernel = kernel.fn


def main() -> None:
    settle_autotuners()
    torch.manual_seed(0)
    batch, sequence, group, dim, block_size, count = 2, 100, 6, 16, 16, 5
    query = torch.randn(batch, sequence, group, dim, requires_grad=True)
    key, value = (torch.randn(batch, sequence, dim, requires_grad=True) for _ in range(2))
    chosen = torch.full((batch, sequence, count), -1)
    for position in range(sequence):
        own = position // block_size
        blocks = sorted({0, own, max(own - 1, 0), own // 2})
        chosen[:, position, : len(blocks)] = torch.tensor(blocks)
    grad = torch.randn_like(query)
    out = nsa_fla.SelectedAttention.apply(query, key, value, chosen, block_size, dim**-0.5)
    expected = naive_nsa_selection(query, key[:, :, None], value[:, :, None], chosen[:, :, None], block_size)
    inputs = (query, key, value)
    actual_all = (out, *torch.autograd.grad(out, inputs, grad))
    expected_all = (expected, *torch.autograd.grad(expected, inputs, grad))
    for actual, wanted in zip(actual_all, expected_all, strict=True):
        print(((actual - wanted).abs().max() / wanted.abs().max()).item())


if __name__ == "__main__":
    main()
