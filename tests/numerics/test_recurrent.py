"""Recurrent layers: other code's gradients in float64; their states, laws and costs."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch
from oracles.oracle import build, relative_error, text, weights_of
from support.configs import ATTENTIONS, BASE, tiny, tiny_model
from support.decoding import from_cache, in_parts

from efficientbench.architecture.kda import BLOCK
from efficientbench.architecture.recurrent import CHUNK
from efficientbench.basics.errors import ConfigError
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.costs.generation import cache_bytes_read
from efficientbench.costs.model import cache_bytes, count_parameters, flops_per_token, keys_read_per_query
from efficientbench.model.kernels import recurrence_fla
from efficientbench.model.kernels.names import kernel_names

LAYERS = {"gdn": "linear_attn", "kda": "self_attn", "mamba2": "mamba"}
"""Kind → the name of its layer in transformers' class."""


@pytest.mark.proof
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.usefixtures("single_rank")
def test_two_thousand_tokens_are_decoded_as_they_are_computed_at_once(kind: str) -> None:
    config = tiny_model(kind, "model.init_std=0.2", "training.seq_len=2000")
    model, tokens = build(config).eval(), text(config, 2000)
    with torch.no_grad():
        whole = model(tokens)
    assert relative_error(from_cache(model, tokens, in_parts(2000, 100, 1)), whole) < 1e-5


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("name", [name for name in ATTENTIONS if name.partition(",")[0] in LAYERS])
def test_in_float64_a_layer_has_the_gradients_of_transformers_class(name: str) -> None:
    """On outputs of the delta rule as short as they come: those of float32 differ (`support.configs.CONDITIONED`)."""
    config = tiny_model(name, "model.init_std=0.2")
    kind = config.model.attention.kind
    oracle: Any = importlib.import_module(f"oracles.{kind}")
    model = build(config)
    theirs = getattr(oracle.same_weights(weights_of(model), config.model).model.layers[0], LAYERS[kind])
    ours = model.decoder.layers[0].self_attention.double()
    for linear in ours.children():
        # It would add to a float32 buffer of the optimizer.
        linear.gradient_accumulation_fusion = False
    generator = torch.Generator().manual_seed(3)
    shape = (config.training.seq_len, 2, config.model.hidden_size)
    hidden, weights = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    inputs = [hidden.clone().requires_grad_() for _ in range(2)]
    out, _ = ours(inputs[0])
    with oracle.throughout_in_float64():
        wanted = theirs(inputs[1].transpose(0, 1)).transpose(0, 1)
    for each in (out, wanted):
        (each * weights).sum().backward()
    assert relative_error(out, wanted) < 1e-10
    assert relative_error(inputs[0].grad, inputs[1].grad) < 1e-9
    place = "decoder.layers.0.self_attention."
    found = oracle.renamed({place + key: each.grad for key, each in ours.named_parameters()}, config.model)
    for key, parameter in theirs.named_parameters():
        assert relative_error(found[f"model.layers.0.{LAYERS[kind]}.{key}"], parameter.grad) < 1e-9, key


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("kind", LAYERS)
def test_flas_kernel_that_the_record_asks_for_is_the_one_that_the_layer_asks_for(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []

    def refusal(rule: object, device_type: str, *shape: object) -> str:
        asked.append((rule, *shape))
        return "there is no GPU"

    monkeypatch.setattr(recurrence_fla, "refusal", refusal)
    config = tiny_model(kind, "training.dtype=bf16")
    kernel_names(config, "cuda")
    [of_record] = set(asked)
    asked.clear()
    build(config)(text(config, 9))
    assert set(asked) == {of_record}


def assert_same_quantiles(mine: torch.Tensor, other: torch.Tensor) -> None:
    shares = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])
    spread = max((other.max() - other.min()).item(), 1e-6)
    assert (mine.flatten().quantile(shares) - other.flatten().quantile(shares)).abs().max() < 0.08 * spread


@pytest.mark.usefixtures("single_rank")
def test_initial_laws_of_gdn_have_the_quantiles_of_transformers_class() -> None:
    pytest.importorskip("transformers.models.qwen3_5")
    from oracles.gdn import qwen3_5_config
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

    config = tiny_model("gdn", "model.attention.key_heads=1024", "model.attention.key_dim=2")
    ours = first_layer(config)
    torch.manual_seed(0)
    theirs = Qwen3_5GatedDeltaNet(qwen3_5_config(config.model), 0)
    assert_same_quantiles(ours.A_log.exp(), theirs.A_log.exp())
    assert_same_quantiles(ours.dt_bias, theirs.dt_bias)
    assert_same_quantiles(ours.conv_weight, theirs.conv1d.weight)
    assert_same_quantiles(ours.out_norm, theirs.norm.weight)


@pytest.mark.usefixtures("single_rank")
def test_initial_laws_of_kda_have_the_quantiles_of_transformers_class() -> None:
    """But for convolutions, which it draws as linear layers once it has made them, and its authors' code does not."""
    from oracles.kda import KimiLinearForCausalLM, kimi_linear_config
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention

    config = tiny_model("kda", "model.layers=1", "model.attention.key_heads=1024", "model.attention.key_dim=2")
    ours = first_layer(config)
    torch.manual_seed(0)
    settings = kimi_linear_config(config.model)
    theirs, made = KimiLinearForCausalLM(settings).model.layers[0].self_attn, KimiLinearDeltaAttention(settings, 0)
    assert_same_quantiles(ours.A_log.exp(), theirs.forget_gate.A_log.flatten().exp())
    assert_same_quantiles(ours.dt_bias, theirs.forget_gate.dt_bias)
    assert_same_quantiles(ours.conv_weight, made.conv1d.weight)
    assert_same_quantiles(ours.out_norm, theirs.o_norm.weight)


@pytest.mark.usefixtures("single_rank")
def test_initial_laws_of_mamba2_have_the_quantiles_of_transformers_class() -> None:
    """But for A: transformers counts heads, the paper's code and Megatron-core begin between 1 and 16."""
    from megatron.core.ssm.mamba_mixer import MambaMixer
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    ours = first_layer(tiny_model("mamba2", "model.attention.inner_size=4096", "model.attention.value_dim=4"))
    torch.manual_seed(0)
    theirs = Mamba2Mixer(
        Mamba2Config(hidden_size=2048, num_heads=1024, head_dim=4, n_groups=2, state_size=16, num_hidden_layers=1), 0
    )
    for mine, other in (
        (ours.dt_bias, theirs.dt_bias),
        (ours.D, theirs.D),
        (ours.conv_weight, theirs.conv1d.weight),
        (ours.conv_bias, theirs.conv1d.bias),
        (ours.out_norm, theirs.norm.weight),
    ):
        assert_same_quantiles(mine, other)
    least, largest = inspect.signature(MambaMixer).parameters["A_init_range"].default
    assert_same_quantiles(ours.A_log.exp(), torch.linspace(least, largest, 1024))


def first_layer(config: RunConfig) -> torch.nn.Module:
    """The first layer of a model with its initial weights."""
    from efficientbench.model.gpt import build_stages

    [model] = build_stages(config, torch.device("cpu"))
    attention: torch.nn.Module = model.decoder.layers[0].self_attention
    return attention


def test_figures_of_gdn_are_those_counted_by_hand() -> None:
    """6 heads with keys of 128 and values of 256, 28 layers of which 21 are recurrent, in bf16."""
    model, full = resolve("gdn_3to1_1.5B").model, resolve("gqa_1.5B").model
    state, channels = 6 * 128 * 256, 6 * (2 * 128 + 256)
    constant = 21 * (state * 4 + channels * 3 * 2)
    per_token = 7 * 2 * 2 * 128 * 2
    for tokens in (1, 2048, 131_072):
        assert cache_bytes(model, tokens, "bf16") == constant + per_token * tokens + 16
        # The states are written back.
        assert cache_bytes_read(model, tokens, "bf16") == 2 * constant + per_token * tokens
    assert cache_bytes(model, 512, "fp32", 2) - 16 == 21 * (state * 4 + channels * 3 * 4) // 2 + 7 * 2 * 128 * 4 * 512
    costs = model.views["gdn"].attention_variant.costs
    projections = 1536 * (channels + 2 * 6 * 256 + 2 * 6)
    assert costs.parameters(model.views["gdn"]) == projections + channels * 4 + 2 * 6 + 256
    assert costs.causal_score_flops(model.views["gdn"], 2048) == 6 * state
    chunks = 2 * (2 * CHUNK * 128 + CHUNK * (128 + 256) // 2 + CHUNK * 256 + 3 * 128 * 256)
    assert sum(costs.computed_products(model.views["gdn"], 2048)) == 6 * chunks
    assert keys_read_per_query(model, 2048) == keys_read_per_query(full, 2048) / 4
    assert count_parameters(model).total == pytest.approx(count_parameters(full).total, rel=3e-3)
    # Twice as long, a token costs more in the full layers alone.
    longer, shorter = (flops_per_token(model, tokens).forward for tokens in (4096, 2048))
    assert longer - shorter == 7 * 2 * 12 * 128 * 2048


def test_figures_of_kda_are_those_counted_by_hand() -> None:
    """12 heads of 128, each with a state of 128 × 128, in 21 of 28 layers and in bf16; the others are MLA."""
    model = resolve("kda_3to1_1.5B").model
    state, channels = 12 * 128 * 128, 3 * 1536
    constant = 21 * (state * 4 + channels * 3 * 2)
    for tokens in (1, 2048):
        assert cache_bytes(model, tokens, "bf16") == constant + 7 * (384 + 64) * 2 * tokens + 16
    view = model.views["kda"]
    costs = view.attention_variant.costs
    projections = 1536 * (channels + 12 + 1536) + 2 * 1536 * 128 + 2 * 128 * 1536
    assert costs.projection_flops(view) == 2 * projections
    assert costs.parameters(view) == projections + channels * 4 + 12 + 1536 + 128
    assert costs.causal_score_flops(view, 2048) == costs.decode_flops(view, 2048) == 6 * state
    # Of a chunk's keys, those of other blocks; the triangular system; the products with what was learned.
    chunks = 2 * (CHUNK - BLOCK) * 1536 + 2 * CHUNK * 1536 + 2 * CHUNK * 1536 + 6 * state
    assert sum(costs.computed_products(view, 2048)) == chunks
    assert count_parameters(model).total == pytest.approx(count_parameters(resolve("gqa_1.5B").model).total, rel=3e-3)


def test_figures_of_mamba2_are_those_counted_by_hand() -> None:
    """48 heads of 64 in one group, a state of 128 for each channel, in 21 of 28 layers and in bf16."""
    model, full = resolve("mamba2_3to1_1.5B").model, resolve("gqa_1.5B").model
    state, channels = 3072 * 128, 3072 + 2 * 128
    constant = 21 * (state * 4 + channels * 3 * 2)
    for tokens in (1, 2048):
        assert cache_bytes(model, tokens, "bf16") == constant + 7 * 2 * 2 * 128 * 2 * tokens + 16
    view = model.views["mamba2"]
    costs = view.attention_variant.costs
    projections = 1536 * (3072 + channels + 48) + 3072 * 1536
    assert costs.parameters(view) == projections + channels * 5 + 3 * 48 + 3072
    assert costs.causal_score_flops(view, 2048) == costs.decode_flops(view, 2048) == 4 * state
    # The last of 32 chunks leaves no state.
    chunks = 2 * CHUNK * 128 + 2 * CHUNK * 3072 + 2 * state + 2 * state * 31 // 32
    assert sum(costs.computed_products(view, 2048)) == chunks
    for name in ("mamba2_3to1_1.5B", "mamba2_1.5B"):
        assert count_parameters(resolve(name).model).total == pytest.approx(count_parameters(full).total, rel=3e-3)


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        ("gdn", ("model.position.kind=rope",), "Gated DeltaNet has no positions .* set model.position.kind to none"),
        ("mamba2", ("model.position.kind=rope",), "Mamba-2 has no positions .* set model.position.kind to none"),
        ("kda", ("model.position.kind=rope",), "Kimi Delta Attention has no positions .* model.position.kind to none"),
        ("gdn", ("parallel.cp=2",), "parallel.cp: attention 'gdn' does not share a sequence over ranks"),
        ("mamba2", ("parallel.cp=2",), "parallel.cp: attention 'mamba2' does not share a sequence over ranks"),
        ("gdn", ("parallel.tp=4", "model.attention.key_heads=2"), "does not divide the 2 key heads"),
        ("kda", ("parallel.tp=4", "model.attention.key_heads=2"), "does not divide the 2 key heads"),
        ("mamba2", ("parallel.tp=4",), "does not divide the 2 key heads .* ranks of Mamba-2 hold whole heads"),
        ("gdn", ("model.attention.value_heads=3",), "value_heads 3 is not a multiple of key_heads 2"),
        ("mamba2", ("model.attention.value_dim=10",), "inner_size 96 is not a multiple of key_heads · value_dim"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(kind: str, words: tuple[str, ...], message: str) -> None:
    def laid_out() -> Layout:
        return Layout.of(tiny_model(kind, *words), devices=8)

    with pytest.raises(ConfigError, match=message):
        laid_out()


def test_a_pattern_names_it_alone() -> None:
    """Without RoPE, and without the norms of queries and keys that the other layers have."""
    words = "model.layers=4", "model.pattern=[gdn,mamba2,gdn,own]", "model.qk_norm=true", "model.hidden_size=64"
    views = tiny(BASE, *words).model.views
    assert [views[kind].position.kind for kind in ("gdn", "mamba2", "own")] == ["none", "none", "rope"]
    assert [views[kind].qk_norm for kind in ("gdn", "mamba2", "own")] == [False, False, True]
