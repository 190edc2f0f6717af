"""The names of recurrent layers' kernels, and their work beyond the formulas."""

from __future__ import annotations

from efficientbench.costs.compute import AttentionWork
from efficientbench.model.kernels.own_kernels import OwnKernels
from efficientbench.model.kernels.recurrence import BY_CHANNEL_NAME, DELTA_NAME, NAME


def _own(part: str, name: str) -> OwnKernels:
    # The products of chunks are kept, and not computed again.
    work = AttentionWork(scores_again=False)
    return OwnKernels(names=lambda config, device_type: {part: name}, work=lambda config, device_type: work)


GDN = _own("gated_delta_rule", DELTA_NAME)
KDA = _own("gated_delta_rule", BY_CHANNEL_NAME)
MAMBA2 = _own("state_space", NAME)
