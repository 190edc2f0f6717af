"""Formulas for the bytes of a model whose linear weights have fewer bits, without torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.variant import Stack
from efficientbench.config.quantization import WIDTHS, Quantization
from efficientbench.costs.matrices import EXPERTS, layer_matrices
from efficientbench.costs.model import count_parameters
from efficientbench.devices.quantized import Form


def quantized_matrices(model: ModelConfig) -> dict[str, Stack]:
    """Return the weights of a view's layer that are quantized, by their name within the layer.

    Raises UndeclaredError: the attention does not declare its matrices.
    """
    whole = {f"self_attention.{name}" for name in model.attention_variant.read_whole}
    return {name: stack for name, stack in layer_matrices(model).items() if name not in whole}


def saved_bytes(
    model: ModelConfig, dtype: str, stored: Callable[[int, int], int], experts: float | None = None
) -> float:
    """Count the bytes by which quantization makes the weights of all layers smaller than they are in `dtype`.

    `stored`: returns the bytes of a quantized weight by its outputs and inputs, as `Form.bytes`. `experts`: the number
    of a layer's experts to count; None: all.

    Raises UndeclaredError: see `quantized_matrices`.
    """
    saved = 0.0
    for view, count in model.counted_views:
        for name, stack in quantized_matrices(view).items():
            outputs = sum(stack.heights) * stack.repeats
            copies = stack.copies if experts is None or not name.startswith(EXPERTS) else experts
            saved += count * copies * (outputs * stack.inputs * DTYPE_BYTES[dtype] - stored(outputs, stack.inputs))
    return saved


def weight_bytes(model: ModelConfig, dtype: str, form: Form | None, tp: int = 1) -> int:
    """Count the bytes of all weights in the memory of one of `tp` ranks.

    `form`: that of quantized weights; None: all are in `dtype`.
    """
    # Norms and routers, which every rank holds in full too, are too small to count.
    views = model.counted_views if tp > 1 else []
    whole = sum(count * view.attention_variant.costs.replicated_parameters(view) for view, count in views)
    saved = 0 if form is None else round(saved_bytes(model, dtype, form.bytes) / tp)
    return ((count_parameters(model).total - whole) // tp + whole) * DTYPE_BYTES[dtype] - saved


def disk_bytes(model: ModelConfig, dtype: str, quantization: Quantization | None) -> int:
    """Count the bytes of all weights on disk, of quantized ones in the form of `export`: see `packed_bytes`."""
    saved = 0.0 if quantization is None else saved_bytes(model, dtype, partial(packed_bytes, dtype, quantization))
    return count_parameters(model).total * DTYPE_BYTES[dtype] - round(saved)


def packed_bytes(dtype: str, quantization: Quantization, outputs: int, inputs: int) -> int:
    """Count the bytes of a weight [outputs, inputs] in compressed-tensors' format, without padding to a kernel's sizes.

    Weights of 16 bits lie as they are. Of others codes lie row by row in whole int32; each group has a scale, and with
    offsets a code for it, output by output.
    """
    bits = WIDTHS[quantization.weights]
    if bits == 16:
        return 2 * outputs * inputs
    groups = -(-inputs // (quantization.row_group or inputs))
    offsets = 0 if quantization.symmetric else 4 * groups * -(-outputs * bits // 32)
    return 4 * outputs * -(-inputs * bits // 32) + outputs * groups * DTYPE_BYTES[dtype] + offsets
