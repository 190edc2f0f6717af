"""ALiBi: attention with linear biases (arXiv 2108.12409)."""

from __future__ import annotations

import torch
from megatron.core import parallel_state
from megatron.core.transformer import TransformerConfig

from efficientbench.model.position.base import Position


class Alibi(Position):
    """Lowers each score by the distance times the head's slope. Nothing is trained."""

    def __init__(self, config: TransformerConfig) -> None:
        every = slopes(config.num_attention_heads)
        heads = len(every) // parallel_state.get_tensor_model_parallel_world_size()
        first = parallel_state.get_tensor_model_parallel_rank() * heads
        self.slopes = torch.tensor(every[first : first + heads], device=torch.get_default_device())

    def bias(self, sequence: int) -> torch.Tensor:
        """[heads of this rank, S], by distance from 0."""
        return -torch.outer(self.slopes, torch.arange(sequence, dtype=torch.float32, device=self.slopes.device))


def slopes(heads: int) -> list[float]:
    """A geometric sequence from 2^(-8 / heads). For a number of heads that is no power of two the authors take the
    sequence of the next smaller power, then every other slope of the next larger."""
    power = 1 << (heads.bit_length() - 1)
    between = [2 ** (-8 * k / (2 * power)) for k in range(1, 2 * power, 2)]
    return [2 ** (-8 * k / power) for k in range(1, power + 1)] + between[: heads - power]
