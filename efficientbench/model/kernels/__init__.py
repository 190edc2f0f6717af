"""Which kernel serves this device: the arithmetic of the models, apart from their structure."""

from __future__ import annotations

from efficientbench.config.schema import ModelConfig


def kernel_names(model: ModelConfig, device_type: str) -> dict[str, str]:
    """Part of the model → the kernel that computes it, for the record."""
    from efficientbench.model.kernels import (
        attention,
        cross_entropy,
        grouped_mm,
        norm,
        nsa_range,
        nsa_selection,
        rope,
        swiglu,
    )

    names = {module.__name__.rpartition(".")[2]: module.NAME for module in (cross_entropy, norm, rope, swiglu)}
    if model.attention.kind == "nsa":
        names["nsa_compression"] = names["nsa_window"] = nsa_range.NAME
        names["nsa_selection"] = nsa_selection.kernel_name(device_type, model.attention.select_block, model.head_dim)
    else:
        names["attention"] = attention.NAME
    if model.moe is not None:
        names["grouped_mm"] = grouped_mm.NAMES[grouped_mm.has_grouped_mm(device_type)]
    return names
