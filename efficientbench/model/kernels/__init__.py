"""Which kernel serves this device: the arithmetic of the models, apart from their structure."""

from __future__ import annotations

from efficientbench.config.schema import ModelConfig


def kernel_names(model: ModelConfig, device_type: str) -> dict[str, str]:
    """Part of the model → the kernel that computes it on the device type, for the record."""
    from efficientbench.model.kernels import cross_entropy, grouped_mm, norm, rope, swiglu

    names = _attention(model, device_type)
    names |= {"cross_entropy": cross_entropy.NAME, "norm": norm.NAME, "swiglu": swiglu.NAME}
    if model.position.kind == "rope":
        names["rope"] = rope.NAME
    if model.moe is not None:
        names["grouped_mm"] = grouped_mm.NAMES[grouped_mm.has_grouped_mm(device_type)]
    return names


def _attention(model: ModelConfig, device_type: str) -> dict[str, str]:
    from efficientbench.model.kernels import attention, biased_attention, nsa_range, nsa_selection

    if model.attention.kind == "nsa":
        selection = nsa_selection.kernel_name(device_type, model.attention.select_block, model.head_dim)
        return {"nsa_compression": nsa_range.NAME, "nsa_selection": selection, "nsa_window": nsa_range.NAME}
    biased = model.position.kind in ("relative", "alibi")
    return {"attention": biased_attention.name(device_type) if biased else attention.NAME}
