"""Convert our weights, by global name, to the tensors of transformers' classes, by their names, and back.

H = hidden size, F = feed-forward width, V = vocabulary. The global names are those of `model/initial_weights.py`; each
expert's weights have their own names, and a tied output projection has none: it is the embedding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import torch

from efficientbench.architecture.model import ModelConfig
from efficientbench.basics.errors import ConfigError
from efficientbench.config.quantization import Quantization
from efficientbench.export.architectures import exporter_of
from efficientbench.export.families import (
    CLASSES,
    FAMILIES,
    SIGMOIDS,
    Architecture,
    has_products,
    is_untied,
    layer_views,
)
from efficientbench.export.packed import is_quantized, packed_weight
from efficientbench.export.safetensors_folder import BUFFERS

EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"
FINAL_NORM = "decoder.final_layernorm.weight"
EXPERTS_BIAS = "mlp.router.expert_bias"
SHARED = "mlp.shared_experts."

Shapes = dict[str, tuple[int, ...]]


def weight_shapes(model: ModelConfig) -> Shapes:
    """Return the shape of every weight of a model that can be exported."""
    tables = [EMBEDDING] if model.tied else [EMBEDDING, OUTPUT]
    shapes: Shapes = dict.fromkeys(tables, (model.vocab_size, model.hidden_size))
    for number, view in enumerate(layer_views(model)):
        layer = exporter_of(view).weights(view) | _feed_forward(view)
        shapes |= {f"decoder.layers.{number}.{part}": shape for part, shape in layer.items()}
    if model.norm_weights:
        shapes |= {name: (width,) for name, width in norm_widths(model).items()}
    return shapes


def norm_widths(model: ModelConfig) -> dict[str, int]:
    """Return the width of every norm that may have a weight, by our names of the weights."""
    around = dict.fromkeys(("input_layernorm.weight", "pre_mlp_layernorm.weight"), model.hidden_size)
    found: dict[str, int] = {}
    for number, view in enumerate(layer_views(model)):
        widths = around | exporter_of(view).norms(view)
        found |= {f"decoder.layers.{number}.{norm}": width for norm, width in widths.items()}
    return found | {FINAL_NORM: model.hidden_size}


def _feed_forward(model: ModelConfig) -> Shapes:
    """Return gate and up projection as one [2F, H] (without a gate [F, H]), down projection [H, F], and the router.

    The router's bias is a buffer, and no parameter.
    """
    hidden, width = model.hidden_size, model.ffn_hidden_size
    gated = 2 if model.activation == "swiglu" else 1
    network: Shapes = {"linear_fc1.weight": (gated * width, hidden), "linear_fc2.weight": (hidden, width)}
    if model.moe is None:
        return {f"mlp.{name}": shape for name, shape in network.items()}
    experts = {
        f"mlp.experts.{number}.{name}": shape for number in range(model.moe.experts) for name, shape in network.items()
    }
    router: Shapes = {"mlp.router.weight": (model.moe.experts, hidden)}
    if model.moe.bias_rate is not None:
        router[EXPERTS_BIAS] = (model.moe.experts,)
    width *= model.moe.shared_experts or 0
    shared: Shapes = {
        f"{SHARED}linear_fc1.weight": (gated * width, hidden),
        f"{SHARED}linear_fc2.weight": (hidden, width),
    }
    return {**router, **experts, **(shared if width else {})}


# Import is the inverse of export, and uses `converted` too.
#
# Export moves and splits complete rows. Import gives it the numbers of a weight's rows, 1 to n, in place of the weight:
# the result says which of our rows each foreign row is. A foreign row that is none of ours has the number 0.


TIED = ("lm_head.weight", "model.embed_tokens.weight")


def imported(
    tensors: Mapping[str, torch.Tensor], model: ModelConfig, architecture: Architecture
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every weight of our model, unsharded, with its global name.

    Args:
        tensors: a folder's tensors by transformers' names, all of one dtype; each is read when its turn comes.
        model: our model, with an embedding multiplier of 1 unless the class has one.
        architecture: the folder's model type.

    Raises:
        ConfigError: a tensor is missing, has another shape, is not zero where our model has no weight, or does not
            belong to the model; the message names it.
    """
    used: set[str] = set()
    dtype = next(iter(tensors.values())).dtype
    for name, shape in weight_shapes(model).items():
        numbers = torch.arange(1, shape[0] + 1).view(-1, *[1] * (len(shape) - 1))
        weight = torch.empty(shape, dtype=dtype)
        for foreign, rows in converted(name, numbers, model, architecture).items():
            if foreign not in tensors:
                raise ConfigError(f"{foreign} is missing: config.json describes a model that has it")
            tensor = tensors[foreign]
            used.add(foreign)
            if not rows.any():
                _refuse_values(foreign, tensor)
                continue
            # A convolution of transformers has a dimension of 1 behind the first; Kimi Linear's A_log has some.
            expected = (len(rows), *rows.shape[1 : 1 + rows.dim() - len(shape)], *shape[1:])
            if tuple(tensor.shape) != expected:
                raise ConfigError(
                    f"{foreign} has the shape {list(tensor.shape)}; config.json makes it {list(expected)}"
                )
            if torch.equal(rows, numbers):
                # Only the name changes: the file's tensor is used as it is.
                weight = tensor
            else:
                weight[rows.flatten() - 1] = tensor.reshape(rows.numel(), *shape[1:])
        yield name, weight
    _refuse_surplus(tensors, used, model, architecture)


def _refuse_values(name: str, tensor: torch.Tensor) -> None:
    if tensor.any():
        raise ConfigError(f"{name} is not zero throughout, and models here have no such weight")


def _refuse_surplus(
    tensors: Mapping[str, torch.Tensor], used: set[str], model: ModelConfig, architecture: Architecture
) -> None:
    for name in sorted(tensors.keys() - used):
        if name.endswith(BUFFERS):
            continue
        if model.tied and name == TIED[0]:
            if torch.equal(tensors[name], tensors[TIED[1]]):
                continue
            raise ConfigError(
                f"{name} differs from {TIED[1]}, and tie_word_embeddings is true in config.json: false would be right"
            )
        raise ConfigError(f"{name} is no weight of a {CLASSES[architecture]} of the shapes in config.json")


LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
EXPERT = re.compile(r"mlp\.experts\.(\d+)\.linear_fc([12])\.weight")

RENAMED = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
}
"""Tensors that are only renamed: ours → transformers'."""

EXPERT_NAMES = {
    "mixtral": ("block_sparse_moe", ("w1", "w3", "w2")),
    "qwen2_moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
    "qwen3_moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
    "deepseek_v3": ("mlp", ("gate_proj", "up_proj", "down_proj")),
    "kimi_linear": ("block_sparse_moe", ("w1", "w3", "w2")),
}
"""The experts' module, and the names of its gate, up and down projections, by model type."""
WITH_SHARED = ("qwen2_moe", "deepseek_v3", "kimi_linear")
"""Model types that always have a shared expert."""


def exported(
    weights: Mapping[str, torch.Tensor],
    model: ModelConfig,
    architecture: Architecture,
    quantization: Quantization | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of transformers' class with its name; each weight is read once, when its turn comes.

    Args:
        weights: unsharded tensors by global name (see model/initial_weights.py); the embedding may be padded.
        model: the run's model.
        architecture: the model's type in transformers.
        quantization: the form of the linear layers' weights, see `packed`; None: they keep their dtype.

    Raises:
        ConfigError: `weights` are not those of `model`.
    """
    elements = 0
    for name in sorted(weights, key=_in_layer_order):
        weight = weights[name]
        if name in (EMBEDDING, OUTPUT):
            weight = weight[: model.vocab_size]
        elements += weight.numel()
        for new_name, tensor in converted(name, weight, model, architecture).items():
            if quantization is not None and is_quantized(name, model):
                yield from packed_weight(new_name, tensor, quantization)
            else:
                yield new_name, _with_storage_of_its_own(tensor)
    expected = sum(map(math.prod, weight_shapes(model).values()))
    if elements != expected:
        raise ConfigError(
            f"the checkpoint holds {elements:,} numbers where this model has {expected:,}: it is of another model, "
            "or incomplete"
        )
    if not model.norm_weights and architecture != "nanochat":
        # The class multiplies each norm by a weight vector: by ones, which change nothing.
        for name, width in norm_widths(model).items():
            yield from converted(name, weight.new_ones(width), model, architecture).items()


def whole_linears(model: ModelConfig, architecture: Architecture) -> list[str]:
    """Return transformers' names of the linear layers whose weights `--weights` leaves in full width."""
    whole = ["lm_head"]
    for name, shape in weight_shapes(model).items():
        if len(shape) == 2 and name not in (EMBEDDING, OUTPUT) and not is_quantized(name, model):
            tensors = converted(name, torch.empty(shape, device="meta"), model, architecture)
            whole += [each.removesuffix(".weight") for each, tensor in tensors.items() if tensor.dim() == 2]
    return whole


def _in_layer_order(name: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def converted(
    name: str, weight: torch.Tensor, model: ModelConfig, architecture: Architecture
) -> dict[str, torch.Tensor]:
    """Return the tensors that one weight becomes; most are views of it.

    It only moves and splits rows (dimension 0), and adds zeros: `imported` relies on that.

    Raises:
        ConfigError: the model has no such weight.
    """
    tensors = _converted(name, weight, model, architecture)
    return {FAMILIES[architecture].renamed(key): tensor for key, tensor in tensors.items()}


def _converted(
    name: str, weight: torch.Tensor, model: ModelConfig, architecture: Architecture
) -> dict[str, torch.Tensor]:
    """Return the tensors that one weight becomes, by the names that most classes have; see `converted`."""
    if name == EMBEDDING:
        # Where the class does not multiply embeddings, the input's table holds the products, as rounded in training.
        products = has_products(model, architecture)
        tables = {"model.embed_tokens.weight": weight * model.embedding_multiplier if products else weight}
        if model.tied and is_untied(model, architecture):
            # No two tensors of a file share their memory.
            tables["lm_head.weight"] = weight if products else weight.clone()
        return tables
    if name == OUTPUT:
        return {"lm_head.weight": weight}
    if name == FINAL_NORM:
        return {"model.norm.weight": weight}
    found = LAYER.fullmatch(name)
    if found is None:
        raise ConfigError(f"the checkpoint holds {name}, which this model does not have")
    part = found[2]
    expert = EXPERT.fullmatch(part)
    if expert is not None:
        tensors = _expert(expert[1], expert[2], weight, architecture)
    elif part == "mlp.router.weight":
        tensors = _router(weight, _view(model, found[1]), architecture)
    elif part.startswith(SHARED) or part == EXPERTS_BIAS:
        tensors = _beside_experts(part, weight) if part in _feed_forward(_view(model, found[1])) else {}
    elif architecture == "nanochat" and part.startswith("mlp.linear_fc"):
        tensors = {part.replace("linear_", ""): weight}
    elif part in RENAMED:
        tensors = {RENAMED[part]: weight}
    elif part == "mlp.linear_fc1.weight":
        gate, up = weight.chunk(2)
        tensors = {"mlp.gate_proj.weight": gate, "mlp.up_proj.weight": up}
    else:
        view = _view(model, found[1])
        tensors = exporter_of(view).converted(part, weight, view, architecture)
    if not tensors:
        raise ConfigError(f"the checkpoint holds {name}, which this model does not have")
    return {f"model.layers.{found[1]}.{key}": tensor for key, tensor in tensors.items()}


def _view(model: ModelConfig, layer: str) -> ModelConfig:
    return layer_views(model)[int(layer)]


def _router(weight: torch.Tensor, view: ModelConfig, architecture: Architecture) -> dict[str, torch.Tensor]:
    """Return the router [experts, H], and what the class always has beside it and this model does not.

    That is a shared expert, here of width 0, and the bias of DeepSeek-V3 and Kimi Linear, here of zeros.
    """
    folder, _ = EXPERT_NAMES[architecture]
    tensors, hidden = {f"{folder}.gate.weight": weight}, weight.shape[1]
    shared = "shared_expert" if architecture == "qwen2_moe" else "shared_experts"
    if architecture in WITH_SHARED and view.moe is not None and not view.moe.shared_experts:
        for name, shape in (("gate", (0, hidden)), ("up", (0, hidden)), ("down", (hidden, 0))):
            tensors[f"{folder}.{shared}.{name}_proj.weight"] = weight.new_zeros(shape)
    if architecture == "qwen2_moe":
        tensors[f"{folder}.shared_expert_gate.weight"] = weight.new_zeros(1, hidden)
    if SIGMOIDS in FAMILIES[architecture].takes and EXPERTS_BIAS not in _feed_forward(view):
        tensors[f"{folder}.gate.e_score_correction_bias"] = weight.new_zeros(len(weight), dtype=torch.float32)
    return tensors


def _beside_experts(part: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors of the router's bias, or of a weight of the shared experts, by DeepSeek-V3's names."""
    if part == EXPERTS_BIAS:
        return {"mlp.gate.e_score_correction_bias": weight}
    if part.endswith("fc2.weight"):
        return {f"{SHARED}down_proj.weight": weight}
    gate, up = weight.chunk(2)
    return {f"{SHARED}gate_proj.weight": gate, f"{SHARED}up_proj.weight": up}


def _expert(number: str, layer: str, weight: torch.Tensor, architecture: Architecture) -> dict[str, torch.Tensor]:
    """Return one expert's gate and up projections from [2F, H] (layer 1), or its down projection [H, F] (layer 2)."""
    folder, (gate, up, down) = EXPERT_NAMES[architecture]
    prefix = f"{folder}.experts.{number}"
    if layer == "2":
        return {f"{prefix}.{down}.weight": weight}
    gate_weight, up_weight = weight.chunk(2)
    return {f"{prefix}.{gate}.weight": gate_weight, f"{prefix}.{up}.weight": up_weight}


def _with_storage_of_its_own(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor; a copy if it is part of a larger tensor, which it would keep in memory."""
    if tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)
