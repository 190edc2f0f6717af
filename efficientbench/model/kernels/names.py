"""The names of the kernels that compute a run's model on a device, and which of them are fallbacks."""

from __future__ import annotations

from pathlib import Path

from efficientbench.config.model import ModelConfig
from efficientbench.config.registry import attention_of, position_of
from efficientbench.config.schema import RunConfig
from efficientbench.config.variant import UndeclaredError, imported
from efficientbench.costs.hardware import AttentionWork
from efficientbench.model.kernels import (
    TORCH_DTYPES,
    biased_attention,
    causal_attention,
    cross_entropy,
    grouped_mm,
    norm,
    npu_fused,
    relu2,
    rope,
    swiglu,
    weight_gradient,
)
from efficientbench.model.kernels.choose_attention import AttentionChoice, AttentionShape, choose
from efficientbench.model.kernels.own_kernels import OwnKernels

UNDECLARED = "n/a: the attention's declaration names no kernels"


def kernel_names(config: RunConfig, device_type: str) -> dict[str, str]:
    """Return, for each part of the model, the kernel that computes it on the device type, for the record."""
    model = config.model
    names = _attention(config, device_type)
    fused = bool(config.kernels.fused)
    names["cross_entropy"] = cross_entropy.FUSED if fused else cross_entropy.NAME
    on_npu = npu_fused.serves(device_type)
    activations = {"swiglu": (swiglu, npu_fused.SWIGLU), "relu2": (relu2, relu2.NAME)}
    parts = (
        ("norm", norm, npu_fused.RMS_NORM),
        (model.activation, *activations[model.activation]),
        ("rope", rope, npu_fused.ROTARY),
    )
    for part, kernel, npu_kernel in parts:
        if part != "rope" or position_of(model).place == "queries and keys":
            names[part] = kernel.FUSED if fused else npu_kernel if on_npu else kernel.NAME
    dtype = TORCH_DTYPES[config.training.dtype]
    names["weight_gradient"] = weight_gradient.name(device_type, dtype)
    if model.moe is not None:
        names["grouped_mm"] = grouped_mm.name(device_type, dtype)
        names["grouped_weight_gradient"] = grouped_mm.weight_gradient_name(device_type, dtype)
    return names


def fallback_kernels(config: RunConfig, device_type: str) -> dict[str, str]:
    """Return the parts for which we have a better kernel on this device type, and why it does not run here.

    Two runs of which only one uses a fallback differ in more than their models.
    """
    model, names = config.model, kernel_names(config, device_type)
    own = _own_kernels(model)
    found = own.fallbacks(config, device_type) if own else {}
    if names.get("attention") == biased_attention.BLOCKS and device_type == "cuda":
        found["attention"] = "FlexAttention needs Triton"
    if model.moe is not None and device_type in ("cpu", "cuda") and not grouped_mm.has_grouped_mm(device_type):
        found["grouped_mm"] = "this torch has no grouped_mm"
    if device_type == "npu" and not npu_fused.serves(device_type):
        reason = f"torch_npu's fused kernels are documented for Ascend {' and '.join(npu_fused.FUSED)}"
        found |= {part: reason for part in npu_fused.PARTS if part in names}
    return found


def attention_work(config: RunConfig, device_type: str) -> AttentionWork:
    """Return what the attention kernel on the device type computes more than its formula.

    Raises UndeclaredError: the layer computes its scores by itself, and its declaration names no kernels.
    """
    if attention_of(config.model).plain_scores is None:
        own = _own_kernels(config.model)
        if own is None:
            raise UndeclaredError(f"model.attention.kind={config.model.attention.kind} declares no kernels")
        return own.work(config, device_type)
    shape = AttentionShape.of(config)
    if shape is None:
        return AttentionWork()
    chosen = causal_attention.NAME
    if config.parallel.cp == 1:
        chosen = _chosen(config, shape, device_type).name
    # Kernels as in causal_attention.py: torch's own choice on a CPU is its flash kernel.
    flash = chosen == "flash" or (chosen == causal_attention.NAME and device_type == "cpu")
    return AttentionWork(scores_again=chosen != "math", pads_values=flash)


def _attention(config: RunConfig, device_type: str) -> dict[str, str]:
    model = config.model
    if attention_of(model).plain_scores is None:
        own = _own_kernels(model)
        return own.names(config, device_type) if own else {"attention": UNDECLARED}
    shape = AttentionShape.of(config)
    if shape is None:
        trained = position_of(model).costs.parameters(model) > 0
        return {"attention": biased_attention.name(device_type, trained)}
    return {"attention": _chosen(config, shape, device_type).describe()}


def _chosen(config: RunConfig, shape: AttentionShape, device_type: str) -> AttentionChoice:
    return choose(config.kernels.attention, shape, device_type, Path(config.data.cache))


def _own_kernels(model: ModelConfig) -> OwnKernels | None:
    """Return the kernels of a layer that computes its scores by itself; None where it declares none."""
    dotted = attention_of(model).kernels
    return imported(dotted) if dotted else None
