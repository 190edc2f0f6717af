"""The names of the kernels that compute a run's model on a device, and which of them are fallbacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from efficientbench.architecture.model import OWN_LAYER
from efficientbench.architecture.variant import UndeclaredError, imported, shown
from efficientbench.config.schema import RunConfig
from efficientbench.costs.compute import AttentionWork
from efficientbench.model.kernels import (
    TORCH_DTYPES,
    biased_attention,
    biased_attention_flex,
    causal_attention,
    cross_entropy,
    grouped_mm,
    norm,
    npu_fused,
    product,
    relu2,
    swiglu,
    weight_gradient,
)
from efficientbench.model.kernels.choose_attention import AttentionChoice, AttentionShape, choose
from efficientbench.model.kernels.own_kernels import OwnKernels

UNDECLARED = "n/a: the attention's declaration names no kernels"
UNDECLARED_ROTATION = "n/a: the positional encoding's declaration names no kernels"


def kernel_names(config: RunConfig, device_type: str) -> dict[str, str]:
    """Return the name of each model part's kernel on the device type, for the record."""
    model = config.model
    names = _of_each_kind(config, lambda each: _attention(each, device_type))
    fused = bool(config.kernels.fused)
    dtype = TORCH_DTYPES[config.training.dtype]
    names["cross_entropy"] = cross_entropy.name(fused, device_type, dtype)
    on_npu = npu_fused.serves(device_type)
    activations = {"swiglu": (swiglu, npu_fused.SWIGLU), "relu2": (relu2, relu2.NAME)}
    parts = (("norm", norm, npu_fused.RMS_NORM), (model.activation, *activations[model.activation]))
    for part, kernel, npu_kernel in parts:
        names[part] = kernel.FUSED if fused else npu_kernel if on_npu else kernel.NAME
    names |= _of_each_kind(config, lambda each: _position(each, device_type))
    names["weight_gradient"] = weight_gradient.name(device_type, dtype)
    if model.moe is not None:
        names["grouped_mm"] = grouped_mm.name(device_type, dtype)
        names["grouped_weight_gradient"] = grouped_mm.weight_gradient_name(device_type, dtype)
    return names


def kernel_reasons(config: RunConfig, device_type: str) -> dict[str, str]:
    """Return the parts whose kernel was chosen by measurement, with the measured times, which differ between runs."""

    def reasons(each: RunConfig) -> dict[str, str]:
        choice = _choice(each, device_type)
        return {"attention": choice.reasons} if choice is not None and choice.reasons else {}

    timed = product.reasons(device_type, TORCH_DTYPES[config.training.dtype])
    return timed | _of_each_kind(config, reasons)


def fallback_kernels(config: RunConfig, device_type: str) -> dict[str, str]:
    """Return the parts that use a fallback on this device type, with the reasons why the better kernel does not run.

    Two runs of which only one uses a fallback differ in more than their models.
    """
    model, names = config.model, kernel_names(config, device_type)

    def own_fallbacks(each: RunConfig) -> dict[str, str]:
        kernels = map(_declared, (each.model.attention_variant.kernels, each.model.position_variant.kernels))
        return {part: why for own in kernels if own for part, why in own.fallbacks(each, device_type).items()}

    found = _of_each_kind(config, own_fallbacks)
    if names.get("attention") == biased_attention.BLOCKS and device_type == "cuda":
        within = config.data.attention_within_documents
        found["attention"] = (
            "FlexAttention would be compiled for each document's length" if within else "FlexAttention needs Triton"
        )
    if model.moe is not None and device_type in ("cpu", "cuda") and not grouped_mm.has_grouped_mm(device_type):
        found["grouped_mm"] = "this torch has no grouped_mm"
    if device_type == "npu" and not npu_fused.serves(device_type):
        found |= {part: npu_fused.UNDOCUMENTED for part in npu_fused.PARTS if part in names}
    return found


def attention_work(config: RunConfig, device_type: str) -> AttentionWork:
    """Return the work of the device type's attention kernel beyond its formula, in a run whose layers are alike.

    Raises UndeclaredError: the layer has its own scores, and its declaration names no kernels.
    """
    if config.model.plain_scores is None:
        own = _declared(config.model.attention_variant.kernels)
        if own is None:
            raise UndeclaredError(f"model.attention.kind={config.model.attention.kind} declares no kernels")
        return own.work(config, device_type)
    choice = _choice(config, device_type)
    if choice is None:
        if _attention(config, device_type)["attention"] != biased_attention_flex.TRAINED:
            return AttentionWork()
        products = config.model.attention_variant.costs.products(config.model, config.training.seq_len)
        return AttentionWork(again_in_backward=sum(products))
    # Kernels as in causal_attention.py: torch's own choice on a CPU is its flash kernel.
    flash = choice.name == "flash" or (choice.name == causal_attention.NAME and device_type == "cpu")
    return AttentionWork(scores_again=choice.name != "math", pads_values=flash)


def _of_each_kind(config: RunConfig, parts: Callable[[RunConfig], dict[str, str]]) -> dict[str, str]:
    """Return the parts of all kinds of layers: the main kind's by name, another kind's, where it differs, by part_kind.

    The main kind has the model's own keys, or else is the first of the pattern.
    """
    views = config.model.views
    main = OWN_LAYER if OWN_LAYER in views else next(iter(views))
    found = dict(parts(config.with_view(views[main])))
    for name, view in views.items():
        for part, said in parts(config.with_view(view)).items():
            found |= {f"{part}_{name}": said} if found.get(part) != said else {}
    return found


def _attention(config: RunConfig, device_type: str) -> dict[str, str]:
    model = config.model
    if model.plain_scores is None:
        own = _declared(model.attention_variant.kernels)
        return own.names(config, device_type) if own else {"attention": UNDECLARED}
    choice = _choice(config, device_type)
    if choice is not None:
        return {"attention": choice.name}
    position = model.position_variant
    if config.data.attention_within_documents:
        return {"attention": biased_attention.name_by_blocks(device_type)}
    name = shown(lambda: biased_attention.name(device_type, lambda: position.costs.parameters(model) > 0))
    return {"attention": name}


def _choice(config: RunConfig, device_type: str) -> AttentionChoice | None:
    """Return the kernel of plain causal attention; None if scores have a bias or the layer computes them."""
    shape = AttentionShape.of(config)
    if shape is None:
        return None
    if config.parallel.cp > 1:
        # `context_parallel.attention` uses the device's own kernel.
        return AttentionChoice(causal_attention.name(device_type), causal_attention.causal_attention)
    return choose(config.kernels.attention, shape, device_type, Path(config.data.cache))


def _position(config: RunConfig, device_type: str) -> dict[str, str]:
    """Return the kernels of the positional encoding; only encodings that rotate queries and keys have their own."""
    position = config.model.position_variant
    own = _declared(position.kernels)
    if own is not None:
        return own.names(config, device_type)
    return {"position": UNDECLARED_ROTATION} if position.place == "queries and keys" else {}


def _declared(dotted: str | None) -> OwnKernels | None:
    """Return the kernels that a declaration names; None if it names none."""
    return imported(dotted) if dotted else None
