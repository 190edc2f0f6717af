"""The shapes of base models, from their config.json or a table of published models, and their parameter counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efficientbench.basics.errors import ConfigError, nearest
from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.data_tools.download.hub_names import MODELSCOPE

FAMILIES = ("qwen2", "qwen3", "llama", "mistral", "smollm3")
"""The `model_type`s whose decoder layers match `Shape`."""
_WITH_ATTENTION_BIAS = ("qwen3", "llama", "smollm3")
"""The families whose `attention_bias` is on all four projections."""


@dataclass(frozen=True)
class Shape:
    """A decoder with pre-norm layers, grouped-query attention and SwiGLU."""

    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool
    """Whether the output projection shares the embedding's table."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Whether attention's output projection has a bias, too."""
    qk_norm: bool = False
    """Whether queries and keys are normalized per head."""

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.key_value_heads * self.head_dim

    @property
    def table(self) -> int:
        """Parameters of one table [vocabulary, hidden]."""
        return self.vocab * self.hidden

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The linear layers of a decoder layer: name → (inputs, outputs)."""
        return {
            "q_proj": (self.hidden, self.query_width),
            "k_proj": (self.hidden, self.key_width),
            "v_proj": (self.hidden, self.key_width),
            "o_proj": (self.query_width, self.hidden),
            "gate_proj": (self.hidden, self.ffn),
            "up_proj": (self.hidden, self.ffn),
            "down_proj": (self.ffn, self.hidden),
        }

    @property
    def layer_weights(self) -> int:
        """Weights of a decoder layer's matrices."""
        return sum(inputs * outputs for inputs, outputs in self.matrices.values())

    @property
    def layer_vectors(self) -> tuple[int, ...]:
        """The lengths of a decoder layer's biases and norms."""
        biases = (self.query_width, self.key_width, self.key_width) if self.qkv_bias else ()
        output_bias = (self.hidden,) if self.output_bias else ()
        norms = (self.head_dim, self.head_dim) if self.qk_norm else ()
        return (*biases, *output_bias, self.hidden, self.hidden, *norms)

    @property
    def layer_parameters(self) -> int:
        return self.layer_weights + sum(self.layer_vectors)

    @property
    def parameters(self) -> int:
        """Parameters of the model, with a tied table counted once."""
        return self.table * (1 if self.tied else 2) + self.layers * self.layer_parameters + self.hidden


_QWEN25 = {
    # Layers, hidden, heads, key-value heads, feed-forward, vocabulary, tied: config.json of Qwen2.5 (arXiv 2412.15115).
    "0.5B": (24, 896, 14, 2, 4864, 151_936, True),
    "1.5B": (28, 1536, 12, 2, 8960, 151_936, True),
    "3B": (36, 2048, 16, 2, 11_008, 151_936, True),
    "7B": (28, 3584, 28, 4, 18_944, 152_064, False),
    "14B": (48, 5120, 40, 8, 13_824, 152_064, False),
    "32B": (64, 5120, 40, 8, 27_648, 152_064, False),
    "72B": (80, 8192, 64, 8, 29_568, 152_064, False),
}
PUBLISHED: dict[str, Shape] = {
    f"Qwen/Qwen2.5-{size}{form}": Shape(layers, hidden, heads, groups, hidden // heads, ffn, vocab, tied, qkv_bias=True)
    for size, (layers, hidden, heads, groups, ffn, vocab, tied) in _QWEN25.items()
    for form in ("", "-Instruct")
} | {
    # config.json of Qwen3-32B (arXiv 2505.09388).
    "Qwen/Qwen3-32B": Shape(64, 5120, 64, 8, 128, 25_600, 151_936, False, qk_norm=True),
}
"""The shapes of published models by their hub id, so that a plan needs no download."""


def shape_of(model: str) -> Shape:
    """Return the shape of a model folder, or of a published model.

    Raises ConfigError: the folder has no config.json of a known family, or the name is not in PUBLISHED.
    """
    folder = Path(model)
    if folder.is_dir():
        file = folder / "config.json"
        try:
            return shape_of_config(parse_json(read_whole(file)))
        except FileNotFoundError:
            raise ConfigError(f"model: {folder} has no config.json") from None
        except OSError as error:
            raise ConfigError(f"model: {file}: cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError) as error:
            reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ConfigError(f"model: {file} gives no shape: {reason}") from None
    # ModelScope has the published models under the same names.
    name = model.removeprefix(MODELSCOPE)
    if name in PUBLISHED:
        return PUBLISHED[name]
    near = nearest(name, PUBLISHED)
    hint = f"; did you mean {near}?" if near else ""
    raise ConfigError(
        f"model: the shape of {model} is not known here: give the folder that holds its config.json, or one of "
        f"{', '.join(PUBLISHED)}{hint}"
    )


def shape_of_config(config: Mapping[str, Any]) -> Shape:
    """Return the shape that a config.json of transformers describes.

    Raises:
        ValueError: the model is of another family, or has biases or windows that are not counted.
        KeyError: a key is missing.
    """
    family = config["model_type"]
    if family not in FAMILIES:
        raise ValueError(f"model_type {family!r} is none of {', '.join(FAMILIES)}")
    if config.get("mlp_bias"):
        raise ValueError("mlp_bias is not counted")
    if "sliding_attention" in (config.get("layer_types") or ()):
        raise ValueError("layers with windows (layer_types) are not counted")
    attention_bias = family in _WITH_ATTENTION_BIAS and bool(config.get("attention_bias"))
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return Shape(
        layers=config["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        key_value_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        ffn=config["intermediate_size"],
        vocab=config["vocab_size"],
        tied=config.get("tie_word_embeddings", False),
        qkv_bias=family == "qwen2" or attention_bias,
        output_bias=attention_bias,
        qk_norm=family == "qwen3",
    )
