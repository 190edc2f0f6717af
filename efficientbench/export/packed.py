"""compressed-tensors' format of weights in fewer bits, "pack-quantized", which transformers and vLLM read.

Of a weight [O, I] by name, a file holds:

    …weight_packed      [O, ⌈I · bits / 32⌉] int32: each row's codes, the first in the lowest bits
    …weight_scale       [O, G] in the model's dtype
    …weight_zero_point  [⌈O · bits / 32⌉, G] int32, only with offsets: each column's, packed as codes are
    …weight_shape       [2] int64: O, I

weight = (code − zero point) · scale, where codes are from −2^(bits − 1) and are stored with 2^(bits − 1) added.
Source: compressed-tensors 0.20, compressors/pack_quantized.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from efficientbench.architecture.model import ModelConfig
from efficientbench.basics.errors import ConfigError
from efficientbench.config.quantization import PREFIX, WIDTHS, Quantization
from efficientbench.costs.matrices import EXPERTS
from efficientbench.costs.quantization import quantized_matrices
from efficientbench.export.families import layer_views
from efficientbench.model.kernels.quantized import rounded

FORMAT = "pack-quantized"
METHOD = "compressed-tensors"
PACKED, SCALE, ZERO_POINT, SHAPE = "weight_packed", "weight_scale", "weight_zero_point", "weight_shape"
UNREAD = (
    *("kv_cache_scheme", "sparsity_config", "transform_config", "input_activations", "output_activations"),
    *("dynamic", "actorder", "block_structure"),
)
"""Keys of `quantization_config`, of its group of layers and of their weights, that change what a model computes."""
PACKED_WIDTHS = ("int8", "int4")
"""The widths of `--weights` that have this format."""


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack codes [R, C] of 4 or 8 bits → [R, ⌈C · bits / 32⌉] int32."""
    unsigned = F.pad(codes + 2 ** (bits - 1), (0, -codes.shape[1] % (32 // bits))).to(torch.uint8)
    if bits == 4:
        unsigned = unsigned[:, ::2] | unsigned[:, 1::2] << 4
    return unsigned.contiguous().view(torch.int32)


def unpack(words: torch.Tensor, bits: int, columns: int) -> torch.Tensor:
    """Return the codes [R, columns] int32 that `pack` packed. Raises ValueError: the words are not int32."""
    if words.dtype != torch.int32:
        raise ValueError(f"packed codes are int32, and these are {words.dtype}")
    unsigned = words.contiguous().view(torch.uint8)
    if bits == 4:
        unsigned = torch.stack([unsigned & 15, unsigned >> 4], dim=-1).flatten(1)
    return unsigned[:, :columns].int() - 2 ** (bits - 1)


def is_quantized(name: str, model: ModelConfig) -> bool:
    """Return whether a weight of ours, by its global name, is one that `--weights` rounds."""
    found = re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)", name)
    # Each expert has a name of its own.
    part = found and re.sub(r"^mlp\.experts\.\d+\.", EXPERTS, found[2])
    return found is not None and part in quantized_matrices(layer_views(model)[int(found[1])])


def check_packable(model: ModelConfig, quantization: Quantization) -> None:
    """Raise ConfigError where a model's weights of these bits have no such format; the message says why."""
    asked = f"--weights {quantization.weights}"
    if quantization.weights not in PACKED_WIDTHS:
        raise ConfigError(f"{asked}: {FORMAT} holds integers: export {' or '.join(PACKED_WIDTHS)}")
    if model.moe is not None and not quantization.symmetric:
        raise ConfigError(f"{PREFIX}symmetric=false: transformers cannot read experts with offsets")
    for view in model.views.values():
        for name, stack in quantized_matrices(view).items():
            if stack.inputs % (quantization.row_group or 1):
                raise ConfigError(
                    f"{PREFIX}group={quantization.row_group}: {name} has {stack.inputs:,} inputs, no multiple of it, "
                    f"and {FORMAT} has whole groups"
                )


def packed_weight(name: str, weight: torch.Tensor, quantization: Quantization) -> Iterator[tuple[str, torch.Tensor]]:
    """Round a weight [O, I], and yield its tensors with their names; `name` ends with `weight`."""
    bits = WIDTHS[quantization.weights]
    codes, scales, offsets = rounded(weight, bits, quantization.row_group, quantization.symmetric)
    stem = name.removesuffix("weight")
    yield f"{stem}{PACKED}", pack(codes, bits)
    yield f"{stem}{SCALE}", scales
    if not quantization.symmetric:
        yield f"{stem}{ZERO_POINT}", pack(offsets.int().t(), bits).t().contiguous()
    yield f"{stem}{SHAPE}", torch.tensor(weight.shape)


def packed_settings(quantization: Quantization, whole: list[str]) -> dict[str, Any]:
    """Return config.json's `quantization_config`; `whole`: transformers' names of the linear layers in full width."""
    group = quantization.row_group
    shape = {"strategy": "channel" if group is None else "group", "group_size": group}
    kind = {"num_bits": WIDTHS[quantization.weights], "type": "int", "symmetric": quantization.symmetric}
    weights = {**kind, **shape, "dynamic": False}
    layers = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    method = {"quant_method": METHOD, "format": FORMAT, "quantization_status": "compressed"}
    return {**method, "config_groups": {"group_0": layers}, "ignore": whole, "kv_cache_scheme": None}


def read_settings(path: Path, settings: Any) -> Quantization:
    """Return the quantization that config.json's `quantization_config` describes.

    Raises ConfigError: it is another format, or has more than weights of one kind.
    """
    try:
        [layers] = settings["config_groups"].values()
        weights = layers["weights"]
        kinds = {settings["quant_method"], settings["format"], layers.get("format") or FORMAT, weights["type"]}
        if kinds != {METHOD, FORMAT, "int"}:
            raise ValueError(f"it is {', '.join(sorted(map(str, kinds)))}")
        # "weight" and "static" say how codes were chosen; else they are in another order than the columns.
        used = {**settings, **layers, **weights, "actorder": weights.get("actorder") not in (None, "weight", "static")}
        if wrong := [key for key in UNREAD if used.get(key)]:
            raise ValueError(f"it has {wrong[0]}")
        [width] = [each for each in PACKED_WIDTHS if WIDTHS[each] == weights["num_bits"]]
        group = {"channel": None, "group": weights.get("group_size")}[weights["strategy"]]
        found = Quantization.model_validate({"weights": width, "group": group, "symmetric": weights["symmetric"]})
        if found.row_group != group:
            raise ValueError(f"it has {width} without groups")
        return found
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{path}: quantization_config: its weights are quantized, and of such models {METHOD}' {FORMAT} is read, "
            f"int8 or int4 in groups, alike in all layers ({type(error).__name__}: {error}): save it so, or in full "
            "width"
        ) from None


class Unpacked(Mapping[str, torch.Tensor]):
    """A folder's weights by transformers' names, those of fewer bits in full width, each read when its turn comes."""

    def __init__(self, saved: Mapping[str, torch.Tensor], quantization: Quantization) -> None:
        """Take the tensors of a folder, and how they are quantized."""
        self.saved, self.quantization = saved, quantization
        stems = [name.removesuffix(PACKED) for name in saved if name.endswith(f".{PACKED}")]
        self.packed = dict.fromkeys(f"{stem}weight" for stem in stems)
        parts = {f"{stem}{end}" for stem in stems for end in (PACKED, SCALE, ZERO_POINT, SHAPE)}
        self.names = dict.fromkeys(name for name in saved if name not in parts) | self.packed

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a tensor, of a quantized weight (code − zero point) · scale in the scales' dtype."""
        if name not in self.packed:
            return self.saved[name]
        stem, bits = name.removesuffix("weight"), WIDTHS[self.quantization.weights]
        ends = (PACKED, SCALE, SHAPE, *(() if self.quantization.symmetric else (ZERO_POINT,)))
        if missing := [end for end in ends if f"{stem}{end}" not in self.saved]:
            raise ConfigError(f"{stem}{missing[0]} is missing: {stem}{PACKED} needs it")
        words, scales, shape, *zeros = (self.saved[f"{stem}{end}"] for end in ends)
        try:
            outputs, inputs = shape.tolist()
            codes = unpack(words, bits, inputs).view(outputs, scales.shape[1], -1)
            if zeros:
                codes = codes - unpack(zeros[0].t(), bits, outputs).t()[..., None]
            return (codes.to(scales.dtype) * scales[..., None]).view(outputs, inputs)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ConfigError(f"{stem}{PACKED}, its scales and its shape do not fit together: {error}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
