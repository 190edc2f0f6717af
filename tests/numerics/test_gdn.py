"""Gated DeltaNet: the rule as it is written, in float64, at every length and gate; its state, laws and costs."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from oracles.gdn import recurrence
from oracles.oracle import build, relative_error, text, weights_of
from support.configs import ATTENTIONS, BASE, tiny, tiny_model
from support.decoding import from_cache, in_parts

from efficientbench.architecture.gdn import CHUNK
from efficientbench.basics.errors import ConfigError
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.costs.generation import cache_bytes_read
from efficientbench.costs.model import cache_bytes, count_parameters, flops_per_token, keys_read_per_query

FORWARD, BACKWARD = 1e-5, 3e-5
LENGTHS = (1, 2, 7, 63, 64, 65, 128, 200, 301)
QUICK = {(1, "usual"), (65, "usual"), (65, "extreme"), (200, "fast")}


def inputs(length: int, gates: str) -> list[torch.Tensor]:
    """Query, key, value, decay, beta and a state in float64: two rows, two key heads with two value heads each."""
    generator = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    query, key = (F.normalize(normal(length, 2, 2, 16), dim=-1) for _ in range(2))
    decay = -F.softplus(normal(length, 2, 4)) * (20 if gates == "fast" else 0.3)
    beta = normal(length, 2, 4).sigmoid()
    if gates == "extreme":
        # Of ten tokens, two forget all, one almost all, two nothing; and three learn all, three nothing.
        share = torch.rand(2, length, 2, 4, generator=generator)
        for below, value in ((0.5, 0.0), (0.3, -900.0), (0.2, -math.inf)):
            decay = decay.masked_fill(share[0] < below, value)
        beta = beta.masked_fill(share[1] < 0.6, 0.0).masked_fill(share[1] < 0.3, 1.0)
    return [query, key, normal(length, 2, 4, 8), decay, beta, normal(2, 4, 16, 8)]


def results(rule: object, given: list[torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The rule's output, state and gradients, in float64."""
    assert callable(rule)
    own = [each.clone().to(dtype).requires_grad_() for each in given]
    out, state = rule(*own)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(each.shape, generator=generator, dtype=torch.float64).to(dtype) for each in (out, state)]
    ((out * weights[0]).sum() + (state * weights[1]).sum()).backward()
    names = ("query", "key", "value", "decay", "beta", "state before")
    found = {"out": out, "state": state} | {name: each.grad for name, each in zip(names, own, strict=True)}
    return {name: each.detach().double() for name, each in found.items()}


def assert_close(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], forward: float, back: float) -> None:
    for name, expected in wanted.items():
        # The gradient of a gate may be 0.
        scale = max(expected.abs().max().item(), 1e-2)
        assert (found[name] - expected).abs().max() < (forward if name in ("out", "state") else back) * scale, name


@pytest.mark.parametrize(
    ("length", "gates"),
    [
        case if case in QUICK else pytest.param(*case, marks=pytest.mark.proof)
        for case in ((length, gates) for length in LENGTHS for gates in ("usual", "fast", "extreme"))
    ],
)
def test_the_rule_is_computed_as_it_is_written(length: int, gates: str) -> None:
    from efficientbench.model.kernels.gated_delta_rule import gated_delta_rule

    given = inputs(length, gates)
    wanted = results(recurrence, given, torch.float64)
    assert_close(results(gated_delta_rule, given, torch.float64), wanted, 1e-9, 1e-9)
    assert_close(results(gated_delta_rule, given, torch.float32), wanted, FORWARD, BACKWARD)


@pytest.mark.parametrize("gates", ["usual", "extreme"])
def test_a_step_and_a_chunk_from_a_state_continue_the_sequence(gates: str) -> None:
    from efficientbench.model.kernels.gated_delta_rule import gated_delta_rule, gated_delta_step

    *given, state = (each.float() for each in inputs(CHUNK + 9, gates))
    whole, last = gated_delta_rule(*given, state)
    outputs, carried = [], state
    for part in ([each[:5] for each in given], [each[5:] for each in given]):
        out, carried = gated_delta_rule(*part, carried)
        outputs.append(out)
    assert relative_error(torch.cat(outputs), whole) < FORWARD
    assert relative_error(carried, last) < FORWARD
    stepped = state.clone()
    steps = [gated_delta_step(*(each[token : token + 1] for each in given), stepped) for token in range(len(whole))]
    assert relative_error(torch.cat(steps), whole) < FORWARD
    assert relative_error(stepped, last) < FORWARD


def test_flash_linear_attentions_reference_computes_the_same() -> None:
    """Its file alone: the package's import asks for a GPU's driver."""
    from efficientbench.model.kernels.gated_delta_rule import gated_delta_rule

    package = importlib.util.find_spec("fla")
    if package is None or package.origin is None:
        pytest.skip("fla-core is not installed")
    path = Path(package.origin).parent / "ops" / "gated_delta_rule" / "naive.py"
    spec = importlib.util.spec_from_file_location("naive_gated_delta_rule", path)
    assert spec is not None
    assert spec.loader is not None
    naive = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(naive)
    query, key, value, decay, beta, state = (each.float() for each in inputs(CHUNK + 9, "usual"))
    by_row = [each.repeat_interleave(2, dim=2).transpose(0, 1) for each in (query, key)]
    by_row += [each.transpose(0, 1) for each in (value, beta, decay)]
    wanted, last = naive.naive_recurrent_gated_delta_rule(*by_row, initial_state=state, output_final_state=True)
    out, carried = gated_delta_rule(query, key, value, decay, beta, state)
    assert relative_error(out, wanted.transpose(0, 1)) < FORWARD
    assert relative_error(carried, last) < FORWARD


@pytest.mark.proof
@pytest.mark.usefixtures("single_rank")
def test_two_thousand_tokens_are_decoded_as_they_are_computed_at_once() -> None:
    config = tiny_model("gdn", "model.init_std=0.2", "training.seq_len=2000")
    model, tokens = build(config).eval(), text(config, 2000)
    with torch.no_grad():
        whole = model(tokens)
    assert relative_error(from_cache(model, tokens, in_parts(2000, 100, 1)), whole) < 1e-5


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("name", [name for name in ATTENTIONS if name.partition(",")[0] == "gdn"])
def test_in_float64_the_layer_has_the_gradients_of_transformers_class(name: str) -> None:
    """On outputs as short as they come, where those of float32 differ (`support.configs.CONDITIONED`)."""
    pytest.importorskip("transformers.models.qwen3_5")
    from oracles.gdn import renamed, same_weights, throughout_in_float64

    config = tiny_model(name, "model.init_std=0.2")
    model = build(config)
    theirs = same_weights(weights_of(model), config.model).model.layers[0].linear_attn
    ours = model.decoder.layers[0].self_attention.double()
    for linear in (ours.linear_in, ours.linear_proj):
        # It would add to a float32 buffer of the optimizer.
        linear.gradient_accumulation_fusion = False
    generator = torch.Generator().manual_seed(3)
    shape = (config.training.seq_len, 2, config.model.hidden_size)
    hidden, weights = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    inputs = [hidden.clone().requires_grad_() for _ in range(2)]
    out, _ = ours(inputs[0])
    with throughout_in_float64():
        wanted = theirs(inputs[1].transpose(0, 1)).transpose(0, 1)
    for each in (out, wanted):
        (each * weights).sum().backward()
    assert relative_error(out, wanted) < 1e-10
    assert relative_error(inputs[0].grad, inputs[1].grad) < 1e-9
    place = "decoder.layers.0.self_attention."
    found = renamed({place + key: each.grad for key, each in ours.named_parameters()}, config.model)
    for key, parameter in theirs.named_parameters():
        assert relative_error(found[f"model.layers.0.linear_attn.{key}"], parameter.grad) < 1e-9, key


@pytest.mark.usefixtures("single_rank")
def test_initial_laws_have_the_quantiles_of_transformers_class() -> None:
    pytest.importorskip("transformers.models.qwen3_5")
    from oracles.gdn import qwen3_5_config
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

    config = tiny_model("gdn", "model.attention.key_heads=1024", "model.attention.key_dim=2")
    ours = build_untouched(config)
    torch.manual_seed(0)
    theirs = Qwen3_5GatedDeltaNet(qwen3_5_config(config.model), 0)
    shares = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])
    for mine, other in (
        (ours.A_log.exp(), theirs.A_log.exp()),
        (ours.dt_bias, theirs.dt_bias),
        (ours.conv_weight, theirs.conv1d.weight),
        (ours.out_norm, theirs.norm.weight),
    ):
        spread = max((other.max() - other.min()).item(), 1e-6)
        assert (mine.flatten().quantile(shares) - other.flatten().quantile(shares)).abs().max() < 0.08 * spread


def build_untouched(config: RunConfig) -> torch.nn.Module:
    """The first layer of a model with its initial weights."""
    from efficientbench.model.gpt import build_stages

    [model] = build_stages(config, torch.device("cpu"))
    attention: torch.nn.Module = model.decoder.layers[0].self_attention
    return attention


def test_figures_are_those_counted_by_hand() -> None:
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model.position.kind=rope",), "set model.position.kind to none"),
        (("parallel.cp=2",), "parallel.cp: attention 'gdn' does not share a sequence over ranks"),
        (("parallel.tp=4", "model.attention.key_heads=2"), "does not divide the 2 key heads"),
        (("model.attention.value_heads=3",), "value_heads 3 is not a multiple of key_heads 2"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(words: tuple[str, ...], message: str) -> None:
    def laid_out() -> Layout:
        return Layout.of(tiny_model("gdn", *words), devices=8)

    with pytest.raises(ConfigError, match=message):
        laid_out()


def test_a_pattern_names_it_alone() -> None:
    """Without RoPE, and without the norms of queries and keys that the other layers have."""
    config = tiny(BASE, "model.layers=4", "model.pattern=[gdn,gdn,gdn,own]", "model.qk_norm=true")
    views = config.model.views
    assert (views["gdn"].position.kind, views["own"].position.kind) == ("none", "rope")
    assert (views["gdn"].qk_norm, views["own"].qk_norm) == (False, True)
