"""Sinks, gates, partial rotations, layers without positions: transformers' classes, and the formula in float64."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from oracles.oracle import assert_gradients_equal, build, gradients_beside, relative_error, text, weights_of
from oracles.plain_decoder import PlainDecoder
from oracles.qwen2 import rotation, to_qwen2
from support.configs import BASE, tiny

from efficientbench.config.schema import RunConfig

pytestmark = pytest.mark.usefixtures("single_rank")

GATED = (
    "model.attention.gate=true",
    "model.attention.qkv_bias=false",
    "model.qk_norm=true",
    "model.position.share=0.5",
)
SINKS = (
    *("model.attention.sinks=true", "model.attention.qkv_bias=false", "model.layers=4"),
    *("model.pattern=[swa,swa,swa,full]", "model.kinds.swa.attention.window=5", "model.kinds.full.position.kind=none"),
)
ONE_GROUP = ("model.attention.sinks=true", "model.attention.query_groups=1", "model.attention.gate=true")
OTHER_BASE = "model.kinds.swa.position.base=100"
NOPE = ("model.pattern=[own,free,own]", "model.layers=3", "model.kinds.free.position.kind=none")


def attending(*overrides: str) -> RunConfig:
    """A model whose attention is far from uniform, on an odd number of tokens."""
    return tiny(BASE, "model.init_std=0.2", "training.seq_len=23", *overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        (*SINKS, OTHER_BASE),
        GATED,
        pytest.param(ONE_GROUP, marks=pytest.mark.proof),
        pytest.param(NOPE, marks=pytest.mark.proof),
    ],
    ids=["sinks and windows", "gate", "sinks and gates of one group", "no positions"],
)
def test_logits_loss_and_gradients_equal_the_formula(overrides: tuple[str, ...]) -> None:
    config = attending(*overrides)
    model = build(config)
    plain = PlainDecoder(weights_of(model), config.model)
    for name, gradient in gradients_beside(model, config, plain).items():
        assert relative_error(gradient, plain.weights[name].grad) < 1e-5, name


@pytest.mark.proof
def test_sinks_windows_and_bases_equal_those_of_granite_swa() -> None:
    pytest.importorskip("transformers.models.granite_swa")
    from oracles.granite_swa import same_weights

    config = attending(*SINKS, OTHER_BASE)
    model = build(config)
    oracle = same_weights(weights_of(model), config.model)
    assert sum(name.endswith("sinks") for name, _ in oracle.named_parameters()) == config.model.layers
    gradients = gradients_beside(model, config, lambda tokens: oracle(tokens).logits)
    assert_gradients_equal(to_qwen2(gradients, config.model), oracle)


@pytest.mark.proof
def test_gates_head_norms_and_partial_rotation_equal_those_of_qwen3_next() -> None:
    pytest.importorskip("transformers.models.qwen3_next")
    from oracles.qwen3_next import same_weights, to_qwen3_next

    config = attending(*GATED)
    model = build(config)
    oracle = same_weights(weights_of(model), config.model)
    gradients = gradients_beside(model, config, lambda tokens: oracle(tokens).logits)
    assert_gradients_equal(to_qwen3_next(gradients, config.model), oracle)


@pytest.mark.proof
def test_layers_without_positions_are_those_of_smollm3() -> None:
    pytest.importorskip("transformers.models.smollm3")
    from oracles.qwen2 import multiply_embedding
    from transformers import SmolLM3Config, SmolLM3ForCausalLM

    config = attending(*NOPE, "model.attention.qkv_bias=false")
    model, shapes = build(config), config.model
    assert shapes.position.rope_base is not None
    settings = SmolLM3Config(
        vocab_size=shapes.vocab_size,
        hidden_size=shapes.hidden_size,
        intermediate_size=shapes.ffn_hidden_size,
        num_hidden_layers=shapes.layers,
        num_attention_heads=shapes.heads,
        num_key_value_heads=shapes.key_value_heads,
        rms_norm_eps=shapes.norm_epsilon,
        no_rope_layers=[1, 0, 1],
        tie_word_embeddings=True,
        use_cache=False,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
        attn_implementation="eager",
        **rotation(shapes.position.rope_base),
    )
    oracle = SmolLM3ForCausalLM(settings).float()
    missing, unexpected = oracle.load_state_dict(to_qwen2(weights_of(model), shapes), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    multiply_embedding(oracle, shapes)
    gradients = gradients_beside(model, config, lambda tokens: oracle(tokens).logits)
    assert_gradients_equal(to_qwen2(gradients, shapes), oracle)


@pytest.mark.parametrize("window", [None, 4])
def test_the_kernel_computes_gpt_oss_sinks(window: int | None) -> None:
    """Over more tokens than one block of queries has."""
    pytest.importorskip("transformers.models.gpt_oss")
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    from efficientbench.model.kernels.window_attention import window_attention

    generator, length = torch.Generator().manual_seed(3), 131
    shapes = ((length, 2, 4, 8), (length, 2, 2, 8), (length, 2, 2, 8), (4,))
    inputs = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    query, key, value, sinks = inputs
    distance = torch.arange(length)[:, None] - torch.arange(length)
    hidden = (distance < 0) | (distance >= (window or length))
    expected, _ = eager_attention_forward(
        SimpleNamespace(num_key_value_groups=2, sinks=sinks, training=False),
        *(each.permute(1, 2, 0, 3) for each in (query, key, value)),
        torch.zeros(length, length).masked_fill(hidden, -torch.inf),
        scaling=0.3,
    )
    out = window_attention(query, key, value, 0.3, window, sinks)
    grad = torch.randn(out.shape, generator=generator)
    wanted = torch.autograd.grad(expected.flatten(2).transpose(0, 1), inputs, grad)
    assert relative_error(out, expected.flatten(2).transpose(0, 1)) < 1e-5
    for found, gradient in zip(torch.autograd.grad(out, inputs, grad), wanted, strict=True):
        assert relative_error(found, gradient) < 1e-5


def test_the_last_queries_of_a_sequence_are_computed_alone() -> None:
    """As context-parallel ranks have them, with windows that reach into other ranks' tokens."""
    from efficientbench.model.kernels.window_attention import window_attention

    generator, length = torch.Generator().manual_seed(3), 131
    query, key, value = (torch.randn(length, 2, heads, 8, generator=generator) for heads in (4, 2, 2))
    sinks = torch.randn(4, generator=generator)
    for window in (None, 4, 40, 200):
        whole = window_attention(query, key, value, 0.3, window, sinks)
        for queries in (1, 13, 40, 131):
            last = window_attention(query[-queries:], key, value, 0.3, window, sinks)
            assert relative_error(last, whole[-queries:]) < 1e-5


def test_each_key_changes_the_model() -> None:
    """The oracles see each of them: without it, the logits are others."""
    config = attending(*SINKS, *GATED)
    model, tokens = build(config).eval(), text(config, 23)
    weights = weights_of(model)
    with torch.no_grad():
        logits = model(tokens)
        assert relative_error(logits, PlainDecoder(weights, config.model)(tokens)) < 1e-5
        for change in (
            *("model.kinds.swa.attention.window=6", "model.kinds.full.attention.sinks=false"),
            *("model.kinds.full.position.kind=rope", "model.kinds.swa.position.share=1"),
        ):
            other = PlainDecoder(weights, attending(*SINKS, *GATED, change).model)
            assert relative_error(logits, other(tokens)) > 1e-3, change
