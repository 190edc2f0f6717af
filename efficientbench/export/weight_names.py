"""The global names and shapes of our models' weights.

H = hidden size, F = feed-forward width, V = vocabulary. The names are those of `model/initial_weights.py`; each
expert's weights have their own names, and a tied output projection has none: it is the embedding.
"""

from __future__ import annotations

from efficientbench.architecture.model import ModelConfig
from efficientbench.export.architectures import exporter_of

EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"
FINAL_NORM = "decoder.final_layernorm.weight"

Shapes = dict[str, tuple[int, ...]]


def weight_shapes(model: ModelConfig) -> Shapes:
    """Return the shape of every weight of a model that can be exported."""
    tables = [EMBEDDING] if model.tied else [EMBEDDING, OUTPUT]
    shapes: Shapes = dict.fromkeys(tables, (model.vocab_size, model.hidden_size))
    layer = exporter_of(model).weights(model) | _feed_forward(model)
    for number in range(model.layers):
        shapes |= {f"decoder.layers.{number}.{part}": shape for part, shape in layer.items()}
    if model.norm_weights:
        shapes |= {f"{name}.weight": (width,) for name, width in norm_widths(model).items()}
    return shapes


def norm_widths(model: ModelConfig) -> dict[str, int]:
    """Return the width of every norm that may have weights, by our names without `.weight`."""
    widths = {"input_layernorm": model.hidden_size, "pre_mlp_layernorm": model.hidden_size}
    widths |= exporter_of(model).norms(model)
    found = {f"decoder.layers.{layer}.{norm}": width for layer in range(model.layers) for norm, width in widths.items()}
    return found | {FINAL_NORM.removesuffix(".weight"): model.hidden_size}


def _feed_forward(model: ModelConfig) -> Shapes:
    """Return gate and up projection as one [2F, H] (without a gate [F, H]), down projection [H, F], and the router."""
    hidden, width = model.hidden_size, model.ffn_hidden_size
    gated = 2 if model.activation == "swiglu" else 1
    network: Shapes = {"linear_fc1.weight": (gated * width, hidden), "linear_fc2.weight": (hidden, width)}
    if model.moe is None:
        return {f"mlp.{name}": shape for name, shape in network.items()}
    experts = {
        f"mlp.experts.{number}.{name}": shape for number in range(model.moe.experts) for name, shape in network.items()
    }
    return {"mlp.router.weight": (model.moe.experts, hidden), **experts}
