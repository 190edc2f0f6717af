"""The names of NSA's kernels, and what they compute beyond its formulas."""

from __future__ import annotations

from efficientbench.config.schema import RunConfig
from efficientbench.costs.hardware import AttentionWork
from efficientbench.model.attention.nsa_variant import NSAConfig, selected_score_flops
from efficientbench.model.kernels.nsa import range_attention, selected_attention
from efficientbench.model.kernels.nsa.choose_blocks import SelectionShape
from efficientbench.model.kernels.own_kernels import OwnKernels


def _names(config: RunConfig, device_type: str) -> dict[str, str]:
    assert isinstance(config.model.attention, NSAConfig)
    selection = selected_attention.kernel_name(device_type, SelectionShape.of(config, config.model.attention))
    return {"nsa_compression": range_attention.NAME, "nsa_selection": selection, "nsa_window": range_attention.NAME}


def _fallbacks(config: RunConfig, device_type: str) -> dict[str, str]:
    if _names(config, device_type)["nsa_selection"] != selected_attention.NAME or device_type not in ("cuda", "npu"):
        return {}
    return {"nsa_selection": "the device's own kernel is not installed, or does not take these shapes"}


def _work(config: RunConfig, device_type: str) -> AttentionWork:
    twice = _names(config, device_type)["nsa_selection"] == selected_attention.NAME
    return AttentionWork(again=selected_score_flops(config.model, config.training.seq_len) if twice else 0)


KERNELS = OwnKernels(_names, _fallbacks, _work)
