"""Each width of a layer has compiled kernels of its own, whose sizes the compiler knows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from efficientbench.model.kernels import fusion, norm, rope, swiglu


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether sizes were left open in each graph that was compiled, in order."""
    graphs: list[bool] = []

    def note(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        sizes = [size for each in inputs for size in (each.shape if isinstance(each, torch.Tensor) else [each])]
        graphs.append(any(isinstance(size, torch.SymInt) for size in sizes))
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=note))
    torch.compiler.reset()
    fusion.fused.cache_clear()
    yield graphs
    fusion.fused.cache_clear()
    torch.compiler.reset()


def normalize(tokens: int, width: int) -> None:
    x = torch.randn(tokens, 2, width, requires_grad=True)
    norm.rms_norm(x, torch.ones(width), 1e-6, fuse=True).sum().backward()


def rotate(tokens: int, heads: int) -> None:
    angles = torch.randn(tokens, 1, 1, 4)
    rope.rotate(torch.randn(tokens, 2, heads, 8), angles, angles, fuse=True)


def activate(tokens: int, width: int) -> None:
    swiglu.swiglu(torch.randn(tokens, 2 * width), fuse=True)


@pytest.mark.parametrize(("part", "graphs"), [(normalize, 2), (rotate, 1), (activate, 1)])
def test_every_width_has_kernels_of_its_sizes(
    part: Callable[[int, int], None], graphs: int, compiled: list[bool]
) -> None:
    for width in (12, 3, 12, 3):
        part(7, width)
    assert compiled == [False] * 2 * graphs
    # Numbers of tokens, which differ from step to step where ranks share experts, have one more in all.
    for tokens in range(8, 20):
        part(tokens, 12)
    assert compiled == [False] * 2 * graphs + [True] * graphs
