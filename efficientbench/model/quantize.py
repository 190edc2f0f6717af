"""Replace the weights of a model's linear layers by quantized ones, after loading."""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING

import torch
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

from efficientbench.architecture.model import ModelConfig
from efficientbench.basics.errors import ConfigError
from efficientbench.costs.quantization import quantized_matrices
from efficientbench.devices.quantized import Form
from efficientbench.model.kernels.quantized import QuantizedExperts, check_here, quantized_weight, replace_module
from efficientbench.model.moe import GroupedLinear

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT


def quantize(model: GPT, config: ModelConfig, form: Form) -> None:
    """Quantize the matrices of all layers in place, one after another; what each was is freed.

    The embedding, and the output projection, stay as they are: the loss reads their table block by block.

    Raises:
        ConfigError: the device cannot compute with the form, or a declared matrix is no weight of a linear layer.
        UndeclaredError: the attention does not declare its matrices.
    """
    check_here(form, next(model.parameters()).device.type)
    views = config.views
    for layer, kind in zip(model.decoder.layers, config.layer_kinds, strict=True):
        for name in quantized_matrices(views[kind]):
            place, _, _ = name.rpartition(".")
            linear = layer.get_submodule(place)
            if isinstance(linear, GroupedLinear):
                assert isinstance(linear.weight, torch.Tensor)
                replace_module(linear, "weight", QuantizedExperts(linear.weight, form))
            elif isinstance(linear, ColumnParallelLinear | RowParallelLinear):
                replace_module(linear, "weight", quantized_weight(linear.weight, form))
            elif isinstance(linear, torch.nn.Linear) and linear.bias is None:
                replace_module(layer, place, quantized_weight(linear.weight, form))
            else:
                raise ConfigError(
                    f"--weights: {name} of model.attention.kind={views[kind].attention.kind} belongs to a "
                    f"{type(linear).__name__}, which has no product to replace: name it in AttentionVariant.read_whole"
                )
    _give_back()


def _give_back() -> None:
    """Return freed memory of this process to the system, where its C library can.

    glibc keeps for itself what the weights took in full width, and what their rounding took.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def held_bytes(model: torch.nn.Module) -> int:
    """Count the bytes of all weights and buffers in memory; shared storage counts once."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


def left_out(model: torch.nn.Module) -> dict[str, int]:
    """Return the names of the matrices that are not quantized, without layers' numbers, with their bytes."""
    found: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            short = re.sub(r"^decoder\.layers\.\d+\.", "", name)
            found[short] = found.get(short, 0) + parameter.nbytes
    return found
