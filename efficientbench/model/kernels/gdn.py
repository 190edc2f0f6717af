"""The names of Gated DeltaNet's kernels, and their work beyond its formulas."""

from __future__ import annotations

from efficientbench.costs.compute import AttentionWork
from efficientbench.model.kernels.gated_delta_rule import NAME
from efficientbench.model.kernels.own_kernels import OwnKernels

# The products of chunks are kept, and not computed again.
KERNELS = OwnKernels(
    names=lambda config, device_type: {"gated_delta_rule": NAME},
    work=lambda config, device_type: AttentionWork(scores_again=False),
)
