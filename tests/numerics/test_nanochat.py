"""The row `nanochat_d12` against nanochat's GPT: the same logits, loss and gradients from the same weights.

`NanoChat` is written anew after nanochat/gpt.py of karpathy/nanochat, commit a088b7a of 21 October 2025.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from oracles.oracle import build, gradients_beside, relative_error
from support.configs import tiny

from efficientbench.architecture.model import ModelConfig
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import count_parameters
from efficientbench.model.position import Rope

Tensors = dict[str, torch.Tensor]


def normed(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:])


class NanoChat(torch.nn.Module):
    """Embedding, norm, layers of attention and ReLU² without bias, norm, a table of its own, 15 · tanh(z / 15)."""

    def __init__(self, depth: int, heads: int, width: int, vocabulary: int, bf16_tables: bool) -> None:
        super().__init__()
        self.heads, self.bf16_tables = heads, bf16_tables
        shapes = dict.fromkeys(("query", "key", "value", "out"), (width, width))
        shapes |= {"up": (4 * width, width), "down": (width, 4 * width)}
        generator = torch.Generator().manual_seed(7)

        def drawn(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(shape, generator=generator) / shape[-1] ** 0.5)

        self.embedding, self.head = drawn(vocabulary, width), drawn(vocabulary, width)
        self.layers = torch.nn.ModuleList(
            torch.nn.ParameterDict({name: drawn(*shape) for name, shape in shapes.items()}) for _ in range(depth)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """From tokens [B, S] to logits [B, S, V]."""
        x = normed(self.embedding[tokens])
        for layer in self.layers:
            x = x + self.attention(normed(x), layer)
            x = x + F.relu(normed(x) @ layer["up"].T).square() @ layer["down"].T
        return 15 * torch.tanh(normed(x) @ self.head.T / 15)

    def attention(self, x: torch.Tensor, layer: torch.nn.ParameterDict) -> torch.Tensor:
        query, key, value = (
            (x @ layer[name].T).unflatten(-1, (self.heads, -1)).transpose(1, 2) for name in ("query", "key", "value")
        )
        # First the rotation, then the norm.
        query, key = normed(self.turned(query)), normed(self.turned(key))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).flatten(2) @ layer["out"].T

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """Turn pairs of x [B, heads, S, D] by minus their angle, as nanochat does."""
        half = x.shape[-1] // 2
        angles = torch.outer(torch.arange(x.shape[2]).float(), 10_000 ** (-torch.arange(half) / half))
        cos, sin = angles.cos(), angles.sin()
        if self.bf16_tables:
            cos, sin = cos.bfloat16().float(), sin.bfloat16().float()
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1)


def mapped(theirs: Tensors, model: ModelConfig) -> Tensors:
    """Their tensors (weights or gradients) by our global names."""
    ours = {"embedding.word_embeddings.weight": theirs["embedding"], "output_layer.weight": theirs["head"]}
    for number in range(model.layers):
        layer = {name: theirs[f"layers.{number}.{name}"] for name in ("query", "key", "value", "out", "up", "down")}
        query, key, value = (
            layer[name].unflatten(0, (model.heads, model.head_dim)) for name in ("query", "key", "value")
        )
        # The other sense of rotation is ours with the halves of each head exchanged.
        query, key = (torch.cat(each.chunk(2, dim=1)[::-1], dim=1) for each in (query, key))
        of_heads = torch.cat([query, key, value], dim=1).flatten(0, 1)
        ours |= {
            f"decoder.layers.{number}.self_attention.linear_qkv.weight": of_heads,
            f"decoder.layers.{number}.self_attention.linear_proj.weight": layer["out"],
            f"decoder.layers.{number}.mlp.linear_fc1.weight": layer["up"],
            f"decoder.layers.{number}.mlp.linear_fc2.weight": layer["down"],
        }
    return ours


def assert_equal(config: RunConfig, bf16_tables: bool) -> None:
    from efficientbench.model.initial_weights import global_parameters

    model = config.model
    theirs = NanoChat(model.layers, model.heads, model.hidden_size, model.vocab_size, bf16_tables)
    ours = build(config)
    parameters, weights = global_parameters(ours), mapped(dict(theirs.named_parameters()), model)
    assert parameters.keys() == weights.keys()
    for name, weight in weights.items():
        parameters[name].data.copy_(weight)
    gradients = gradients_beside(ours, config, theirs)
    expected = mapped({name: parameter.grad for name, parameter in theirs.named_parameters()}, model)
    for name, gradient in expected.items():
        assert relative_error(gradients[name], gradient) < 1e-5, name


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("length", [13, 64])
@pytest.mark.parametrize("bf16_tables", [False, True])
def test_logits_loss_and_gradients_equal_nanochats(
    bf16_tables: bool, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bf16_tables:
        # nanochat keeps them so in every dtype; ours have the dtype of compute, and are the same in a bf16 run.
        exact = Rope.angles

        def rounded(self: Rope, like: torch.Tensor, stride: int = 1) -> tuple[torch.Tensor, ...]:
            return tuple(table.bfloat16().to(like.dtype) for table in exact(self, like, stride))

        monkeypatch.setattr(Rope, "angles", rounded)
    assert_equal(tiny("nanochat_d12", "model.ffn_hidden_size=192", f"training.seq_len={length}"), bf16_tables)


@pytest.mark.proof
@pytest.mark.usefixtures("single_rank")
def test_the_full_size_model_equals_nanochats() -> None:
    assert_equal(resolve("nanochat_d12", overrides=["training.dtype=fp32", "training.seq_len=65"]), False)


def test_parameters_are_185_6_million() -> None:
    with torch.device("meta"):
        theirs = NanoChat(12, 6, 768, 65_536, False)
    counted = count_parameters(resolve("nanochat_d12").model).total
    assert counted == sum(parameter.numel() for parameter in theirs.parameters()) == 185_597_952
