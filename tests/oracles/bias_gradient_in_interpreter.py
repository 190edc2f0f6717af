"""Run as a script: errors of our Triton kernel of a bias's gradient, in Triton's interpreter, against autograd's."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch

from efficientbench.model.kernels.bias_gradient_triton import bias_gradient

SHAPES = [(5, 1, 2, 1, 16, 16), (64, 2, 2, 2, 16, 16), (150, 2, 4, 2, 24, 8), (257, 1, 3, 1, 8, 40)]
"""(S, batch, heads, groups, head dimensions of keys and of values)."""


def error(sequence: int, batch: int, heads: int, groups: int, dim: int, value_dim: int, dtype: torch.dtype) -> float:
    """Return the largest difference from the gradient in float64, relative to the largest element."""
    generator = torch.Generator().manual_seed(sequence)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).double()

    # As parts of one projection lie in memory: a row's neighbour is not the next row.
    query, key, value = draw(sequence, batch, heads, 3 * max(dim, value_dim)).chunk(3, dim=-1)
    query, key, value = query[..., :dim], key[:, :, :groups, :dim], value[:, :, :groups, :value_dim]
    bias = draw(heads, sequence).requires_grad_()
    distance = torch.arange(sequence)[:, None] - torch.arange(sequence)
    keys, values = (each.repeat_interleave(heads // groups, dim=2).permute(1, 2, 0, 3) for each in (key, value))
    scores = query.permute(1, 2, 0, 3) @ keys.transpose(2, 3) * 0.3 + bias[:, distance.clamp(min=0)]
    scores = scores.masked_fill(distance < 0, -torch.inf)
    out = (scores.softmax(dim=-1) @ values).permute(2, 0, 1, 3)
    grad = draw(*out.shape)
    [expected] = torch.autograd.grad(out, bias, grad)
    log_sums = scores.detach().logsumexp(dim=-1).float()
    inputs = (each.detach().to(dtype) for each in (grad, out, query, key, value))
    found = bias_gradient(*inputs, bias.detach().float(), log_sums, 0.3)
    return float((found.double() - expected).abs().max() / expected.abs().max())


def main() -> None:
    for shape in SHAPES:
        print(error(*shape, dtype=torch.float32))
    # Not bf16, whose bits the interpreter multiplies as whole numbers.
    print(error(*SHAPES[2], dtype=torch.float16))


if __name__ == "__main__":
    main()
