"""Which kernel serves this device: the arithmetic of the models, apart from their structure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efficientbench.config.model import MLAConfig, NSAConfig
from efficientbench.config.schema import RunConfig

if TYPE_CHECKING:
    from efficientbench.model.kernels.attention_choice import AttentionShape
    from efficientbench.model.kernels.nsa.choice import SelectionShape


def kernel_names(config: RunConfig, device_type: str) -> dict[str, str]:
    """Part of the model → the kernel that computes it on the device type, for the record."""
    from efficientbench.model.dtypes import TORCH_DTYPES
    from efficientbench.model.kernels import cross_entropy, grouped_mm, norm, rope, swiglu, weight_gradient

    model = config.model
    names = _attention(config, device_type)
    fused = bool(config.kernels.fused)
    names["cross_entropy"] = cross_entropy.FUSED if fused else cross_entropy.NAME
    for part, kernel in (("norm", norm), ("swiglu", swiglu), ("rope", rope)):
        if part != "rope" or model.position.kind == "rope":
            names[part] = kernel.FUSED if fused else kernel.name(device_type)
    dtype = TORCH_DTYPES[config.training.dtype]
    names["weight_gradient"] = weight_gradient.name(device_type, dtype)
    if model.moe is not None:
        names["grouped_mm"] = grouped_mm.name(device_type, dtype)
        names["grouped_weight_gradient"] = grouped_mm.weight_gradient_name(device_type, dtype)
    return names


def fallback_kernels(config: RunConfig, device_type: str) -> dict[str, str]:
    """Those parts of `kernel_names` that a better kernel of ours serves on this device type → why it did not here.

    Two runs of which only one fell back are not alike in more than their model.
    """
    from efficientbench.model.kernels import biased_attention, grouped_mm, npu_fused
    from efficientbench.model.kernels.nsa import selection as nsa_selection

    model, names = config.model, kernel_names(config, device_type)
    found = {}
    if names.get("nsa_selection") == nsa_selection.NAME and device_type in ("cuda", "npu"):
        found["nsa_selection"] = "the device's own kernel is not installed, or does not take these shapes"
    if names.get("attention") == biased_attention.BLOCKS and device_type == "cuda":
        found["attention"] = "FlexAttention needs Triton"
    if model.moe is not None and device_type in ("cpu", "cuda") and not grouped_mm.has_grouped_mm(device_type):
        found["grouped_mm"] = "this torch has no grouped_mm"
    if device_type == "npu" and not npu_fused.serves(device_type):
        reason = f"torch_npu's fused kernels are documented for Ascend {' and '.join(npu_fused.FUSED)}"
        found |= {part: reason for part in npu_fused.PARTS if part in names}
    return found


def _attention(config: RunConfig, device_type: str) -> dict[str, str]:
    from efficientbench.model.kernels import biased_attention
    from efficientbench.model.kernels.attention_choice import choose
    from efficientbench.model.kernels.nsa import range as nsa_range
    from efficientbench.model.kernels.nsa import selection as nsa_selection

    model = config.model
    if isinstance(model.attention, NSAConfig):
        selection = nsa_selection.kernel_name(device_type, _selection_shape(config, model.attention))
        return {"nsa_compression": nsa_range.NAME, "nsa_selection": selection, "nsa_window": nsa_range.NAME}
    shape = attention_shape(config)
    if shape is None:
        trained = model.position.kind == "relative"
        return {"attention": biased_attention.name(device_type, trained)}
    return {"attention": choose(config.kernels.attention, shape, device_type).describe()}


def attention_shape(config: RunConfig) -> AttentionShape | None:
    """What one rank computes in a layer with plain causal attention; None where its scores are sparse or biased."""
    from efficientbench.model.dtypes import TORCH_DTYPES
    from efficientbench.model.kernels.attention_choice import AttentionShape

    model, training, tp = config.model, config.training, config.parallel.tp
    if isinstance(model.attention, NSAConfig) or model.position.kind in ("relative", "alibi"):
        return None
    # Of fewer key-value heads than ranks each rank has one, whole.
    heads, groups = model.heads // tp, max(model.key_value_heads // tp, 1)
    widths = model.head_dim, model.head_dim
    if isinstance(model.attention, MLAConfig):
        mla = model.attention
        widths = mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.v_head_dim
    dtype = TORCH_DTYPES[training.dtype]
    return AttentionShape(training.seq_len, training.micro_batch_size, heads, groups, *widths, dtype)


def _selection_shape(config: RunConfig, nsa: NSAConfig) -> SelectionShape:
    group = config.model.heads // nsa.query_groups
    half = config.training.dtype != "fp32"
    from efficientbench.model.kernels.nsa.choice import SelectionShape

    return SelectionShape(
        nsa.select_block, nsa.select_count, config.model.head_dim, group, config.training.seq_len, half
    )
