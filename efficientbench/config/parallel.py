"""The keys of parallelism."""

from __future__ import annotations

from pydantic import Field

from efficientbench.basics.part import (
    Part,
    PositiveInt,
)


class ParallelConfig(Part):
    """Division of the work among ranks: ranks = tp × cp × pp × dp."""

    tp: PositiveInt = Field(default=1, description="tensor-parallel ranks")
    sp: bool = Field(default=False, description="sequence parallelism: split norms and residuals over the tp ranks")
    cp: PositiveInt = Field(default=1, description="context-parallel ranks, which share each sequence")
    pp: PositiveInt = Field(default=1, description="pipeline stages (1F1B)")
    ep: PositiveInt = Field(
        default=1, description="expert-parallel ranks, among those of cp × dp, which share a layer's experts"
    )
    vpp: PositiveInt = Field(
        default=1, description="virtual stages on each pipeline rank; above 1: the schedule is interleaved 1F1B"
    )
    dp: PositiveInt | None = Field(
        default=None, description="data-parallel replicas; unset: as many as the devices allow after tp, cp and pp"
    )
    distributed_optimizer: bool = Field(
        default=True,
        description="shard optimizer states and master weights over cp × dp; it cuts matrices anywhere, so that "
        "training.optimizer=muon sets it to false",
    )
    overlap: bool = Field(
        default=True,
        description="send while computing, where cp × dp is above 1: reduce gradients during the backward pass and, "
        "with the distributed optimizer, gather weights during the forward pass",
    )
    bucket_size: PositiveInt | None = Field(
        default=None,
        description="parameters whose gradients are sent together while others are computed; unset: 40 million, or a "
        "million for each of the cp × dp ranks where that is more",
    )

    def bucket(self, replicas: int) -> int:
        """Return the number of parameters in a bucket among `replicas` = cp × dp ranks."""
        return self.bucket_size or max(40_000_000, 1_000_000 * replicas)

    @property
    def expert_tp(self) -> int:
        """Ranks that split each expert: the tp ranks, or 1 where ep ranks hold complete experts."""
        return self.tp if self.ep == 1 else 1
