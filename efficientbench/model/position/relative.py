"""T5's relative position bias (arXiv 1910.10683, section 2.1), its causal form."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.transformer import TransformerConfig

from efficientbench.config.model import RelativeConfig
from efficientbench.model.position.base import Position


class Relative(Position):
    """Adds to each score a trained number, by head and by the bucket that the distance falls into."""

    def __init__(self, relative: RelativeConfig, config: TransformerConfig, first_stage: bool) -> None:
        """The table [buckets, heads] is one for all layers: every pipeline stage holds it, every tensor-parallel rank
        the columns of its heads."""
        self.buckets, self.max_distance = relative.buckets, relative.max_distance
        heads = config.num_attention_heads // parallel_state.get_tensor_model_parallel_world_size()
        self.table = torch.nn.Parameter(
            torch.empty(relative.buckets, heads, dtype=config.params_dtype, device=torch.get_default_device())
        )
        _split_over_tensor_parallel_ranks(self.table)
        _share_over_pipeline_stages(self.table, config, first_stage)

    def bias(self, sequence: int) -> torch.Tensor:
        """[heads of this rank, S], by distance from 0."""
        assert self.table is not None
        distances = torch.arange(sequence, device=self.table.device)
        return F.embedding(bucket(distances, self.buckets, self.max_distance), self.table).t()


def bucket(distances: torch.Tensor, buckets: int, max_distance: int) -> torch.Tensor:
    """Distances from 0 [S] → the bucket of each [S]: one for each distance in the first half of the buckets, then ever
    wider ones up to `max_distance`; all beyond share the last."""
    exact = buckets // 2
    ratio = (distances.clamp(min=exact).float() / exact).log() / math.log(max_distance / exact)
    wide = exact + (ratio * (buckets - exact)).long()
    return torch.where(distances < exact, distances, wide.clamp(max=buckets - 1))


def _split_over_tensor_parallel_ranks(table: torch.nn.Parameter) -> None:
    table.tensor_model_parallel = True  # type: ignore[attr-defined]
    table.partition_dim = 1  # type: ignore[attr-defined]
    table.partition_stride = 1  # type: ignore[attr-defined]


def _share_over_pipeline_stages(table: torch.nn.Parameter, config: TransformerConfig, first_stage: bool) -> None:
    """The stages' copies start equal, get the sum of their gradients, and so stay equal."""
    # megatron's marks: the sum over stages, which is asked for by the configuration too, …
    table.pipeline_parallel = True  # type: ignore[attr-defined]
    config.has_cond_embedder = True  # type: ignore[attr-defined]
    # … a bucket of its own, so that the distributed optimizer cuts it alike on every stage, …
    table.shared_embedding = True  # type: ignore[attr-defined]
    # … and one copy in the gradient norm.
    table.shared = not first_stage  # type: ignore[attr-defined]
