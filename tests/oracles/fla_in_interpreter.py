"""Run as a script: the largest errors of fla-core's kernels, in Triton's interpreter.

With `nsa`, those of NSA's selected branch, a line each, against fla-core's naive one. With a rule and gates, as of
`oracles.recurrent.inputs`, those of a recurrence by name, as JSON, against it as it is written, in float64.
"""

from __future__ import annotations

import builtins
import functools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from fla.ops.nsa.naive import naive_nsa_selection
from fla.ops.nsa.parallel import parallel_nsa  # noqa: F401 (loads the kernels)
from oracles.recurrent import inputs, recurrence, results
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import interpreter_semantic

from efficientbench.architecture.recurrent import CHUNK
from efficientbench.model.kernels import recurrence_fla
from efficientbench.model.kernels.nsa import selected_attention_fla as nsa_fla

RULES = {
    "delta rule": recurrence_fla.DELTA,
    "by channel": recurrence_fla.BY_CHANNEL,
    "values": recurrence_fla.VALUES,
}
LENGTH = CHUNK + 2
"""More than a chunk."""


class Number(int):
    """The number of a loop, of which the interpreter makes no tensor, as the compiler does."""

    def to(self, dtype: Any) -> Any:
        return interpreter_semantic.to_tensor(int(self)).to(dtype)


def numbers(*bounds: int) -> Iterator[Number]:
    return map(Number, builtins.range(*bounds))


def prepare() -> None:
    """Leave each kernel its last configuration, the choice of which needs a GPU to time it on, and mend loops."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("fla."):
            continue
        for kernel in list(vars(module).values()):
            while hasattr(kernel, "fn"):
                if isinstance(kernel, Autotuner):
                    kernel.configs = kernel.configs[-1:]
                kernel = kernel.fn
        if name.startswith("fla.ops.common."):
            vars(module)["range"] = numbers


def nsa() -> None:
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
    arguments = (query, key, value)
    actual_all = (out, *torch.autograd.grad(out, arguments, grad))
    expected_all = (expected, *torch.autograd.grad(expected, arguments, grad))
    for actual, wanted in zip(actual_all, expected_all, strict=True):
        print(((actual - wanted).abs().max() / wanted.abs().max()).item())


def recurrent(name: str, gates: str) -> None:
    given = inputs(name, LENGTH, gates)
    wanted = results(recurrence, given, torch.float64)
    found = results(functools.partial(recurrence_fla.recurrence, RULES[name]), given, torch.float32)
    # The gradient of a gate may be 0.
    scales = {part: expected.abs().max().clamp(min=1e-2) for part, expected in wanted.items()}
    errors = {part: ((found[part] - expected).abs().max() / scales[part]).item() for part, expected in wanted.items()}
    print(json.dumps(errors))


if __name__ == "__main__":
    prepare()
    if sys.argv[1:] == ["nsa"]:
        nsa()
    else:
        recurrent(*sys.argv[1:])
