"""FlexAttention's compiled kernels on an NVIDIA GPU, against matmuls over blocks of queries in float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from oracles.oracle import relative_error

from efficientbench.model.kernels.biased_attention import biased_by_blocks, biased_causal_attention
from efficientbench.model.kernels.window_attention import window_attention

BATCH, HEADS, GROUPS, WINDOW = 2, 4, 2, 20
MOST = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def attend(kind: str, by_blocks: bool, *leaves: torch.Tensor) -> torch.Tensor:
    query, key, value, trained = leaves
    scale = query.shape[-1] ** -0.5
    if kind == "bias":
        return (biased_by_blocks(trained) if by_blocks else biased(trained))(query, key, value, scale)
    window, sinks = (WINDOW, None) if kind == "window" else (None, trained[:, 0])
    return window_attention(query, key, value, scale, window, sinks, by_blocks)


def biased(bias: torch.Tensor) -> Callable[..., torch.Tensor]:
    return lambda *parts: biased_causal_attention(*parts, bias)


def results(kind: str, by_blocks: bool, dtype: torch.dtype, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """The output, and the gradient of each input that has one."""
    # A bias and sinks are float32 in any model.
    leaves = [each.to(dtype) for each in given[:3]] + [given[3].clone()]
    for each in leaves:
        each.requires_grad_()
    out = attend(kind, by_blocks, *leaves)
    gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    out.backward(gradient.to(out.device, out.dtype))
    return [out.detach(), *(each.grad for each in leaves if each.grad is not None)]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["window", "sinks", "bias"])
# Heads narrower than its kernels take; sequences shorter than a tile, and of several.
@pytest.mark.parametrize(
    ("width", "length", "dtype"),
    [(12, 5, torch.float32), (12, 64, torch.float32), (16, 300, torch.float32), (128, 300, torch.bfloat16)],
)
def test_flex_attention_has_the_outputs_and_gradients_of_matmuls(
    width: int, length: int, dtype: torch.dtype, kind: str
) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(length, BATCH, HEADS, width), *[(length, BATCH, GROUPS, width)] * 2, (HEADS, length)]
    given = [torch.randn(shape, generator=generator) for shape in shapes]
    # Both read the same rounded numbers.
    given = [each.to(dtype).float().cuda() for each in given]
    found, wanted = results(kind, False, dtype, given), results(kind, True, torch.float32, given)
    assert len(found) == len(wanted) == (4 if kind == "window" else 5)
    for one, other in zip(found, wanted, strict=True):
        assert relative_error(one.float(), other) < MOST[dtype]
