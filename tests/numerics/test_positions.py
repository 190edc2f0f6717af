"""Positional encodings against transformers' GPT-2, T5 and Bloom in front of its Qwen2, and against formulas."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from oracles.oracle import build, dense_attention, gradients_beside, relative_error, text, weights_of
from oracles.positions import Oracle, t5_attention
from oracles.qwen2 import to_qwen2
from support.configs import has_table, tiny
from support.repository import ROOT

from efficientbench.architecture.positions import RelativeConfig, RopeScaling
from efficientbench.architecture.registry import POSITIONS
from efficientbench.config.schema import RunConfig
from efficientbench.doctor.variant.cases import BASE

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.usefixtures("single_rank")


def configuration(kind: str, *overrides: str) -> RunConfig:
    # No power of two, for which the slopes of ALiBi have another formula.
    heads = ["model.heads=6"] if kind == "alibi" else []
    return tiny(BASE, f"model.position.kind={kind}", *heads, "model.init_std=0.2", *overrides)


@pytest.mark.parametrize("multiplied", [[], ["model.embedding_multiplier=1"]])
@pytest.mark.parametrize("kind", POSITIONS)
def test_logits_loss_and_gradients_equal_the_oracle(kind: str, multiplied: list[str]) -> None:
    config = configuration(kind, *multiplied)
    assert config.model.embedding_multiplier == (1 if multiplied else math.sqrt(48))
    model = build(config)
    oracle = Oracle(weights_of(model), config.model)
    ours = gradients_beside(model, config, oracle)
    table = ours.pop("position_table", None)
    assert (table is None) == (oracle.table is None) == (not has_table(config))
    if table is not None:
        assert relative_error(table, oracle.table.grad) < 1e-5
        assert (oracle.table.grad[: config.training.seq_len] != 0).any(dim=1).all()
    gradients = to_qwen2(ours, config.model)
    expected_gradients = {key: parameter.grad for key, parameter in oracle.qwen2.named_parameters()}
    for key, gradient in expected_gradients.items():
        # Unrotated, a bias on the keys moves all scores of a query alike: its gradient is zero but for rounding.
        vanishes = key.endswith("k_proj.bias") and POSITIONS[kind].place != "queries and keys"
        scale = expected_gradients[key.replace("bias", "weight")] if vanishes else gradient
        assert (gradients[key] - gradient).abs().max() < 1e-5 * scale.abs().max(), key


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_scaled_rope_has_transformers_frequencies_in_training_and_decoding(factor: float) -> None:
    """At the shapes of Llama 3.1 and 3.2, where most frequencies stay, some pass over, and the others are divided."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from efficientbench.model.position import Rope

    keys = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rotation = {"rope_type": "llama3", "rope_theta": 5e5, **keys, "original_max_position_embeddings": 8192}
    theirs = LlamaConfig(head_dim=128, max_position_embeddings=131_072, rope_parameters=rotation)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs)
    rope = Rope(5e5, 128, RopeScaling(**keys))
    positions = torch.tensor([[0], [1], [2]])
    cos, sin = rope.angles(torch.zeros(3, 1, 1, 128))
    decoding = rope.at(positions)
    for turned in ((cos, sin), (decoding.cos, decoding.sin)):
        angles = torch.atan2(turned[1], turned[0])[1, 0, 0]
        assert relative_error(angles, expected) < 1e-6
        assert ((angles / expected - 1).abs() < 1e-5).all()


@pytest.mark.parametrize("kind", POSITIONS)
def test_one_layer_ignores_the_order_of_earlier_tokens_only_without_positions(kind: str) -> None:
    config = configuration(kind, "model.layers=1")
    model, tokens = build(config), text(config, config.training.seq_len)
    order = torch.cat([torch.randperm(15, generator=torch.Generator().manual_seed(3)), torch.tensor([15])])
    error = relative_error(model(tokens[:, order])[:, -1], model(tokens)[:, -1])
    assert error < 1e-6 if POSITIONS[kind].place == "nothing" else error > 1e-3


@pytest.mark.parametrize("multiplier", [1, "sqrt_hidden_size"])
@pytest.mark.parametrize("kind", ["absolute", "learnable_absolute"])
def test_position_embeddings_have_the_same_spread_relative_to_token_embeddings(kind: str, multiplier: object) -> None:
    from efficientbench.model.gpt import build_stages

    overrides = ["model.hidden_size=192", "model.position.max_seq_len=256"][: 1 + (kind == "learnable_absolute")]
    config = tiny(f"{kind}_1.5B", *overrides, "training.seq_len=256", f"model.embedding_multiplier={multiplier}")
    [model] = build_stages(config, torch.device("cpu"))
    tokens = model.embedding.word_embeddings.weight * config.model.embedding_multiplier
    with torch.no_grad():
        added = model._embed(torch.zeros(1, 256, dtype=torch.long))[:, 0] - tokens[0]
    assert (added.square().mean().sqrt() / tokens.std()).item() == pytest.approx(0.5**0.5, rel=0.05)


@pytest.mark.parametrize("rows", [16, 37, 64])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_biased_attention_in_blocks_matches_the_formula(
    rows: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from efficientbench.model.kernels import biased_attention

    sequence, batch, heads, width = 64, 2, 6, 8
    monkeypatch.setattr(biased_attention, "BLOCK_ELEMENTS", rows * batch * heads * sequence)
    generator = torch.Generator().manual_seed(4)
    shapes = [(sequence, batch, count, width) for count in (heads, groups, groups)] + [(heads, sequence)]
    exact = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    inputs = [x.detach().float().requires_grad_() for x in exact]
    expected = dense_attention(*exact[:3], 0.3, exact[3])
    found = biased_attention.biased_causal_attention(*inputs[:3], 0.3, inputs[3])
    weights = torch.randn(expected.shape, generator=generator)
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    assert relative_error(found, expected) < 1e-6
    for x, y in zip(inputs, exact, strict=True):
        assert relative_error(x.grad, y.grad) < 5e-6


def test_biased_attention_of_narrow_dtypes_computes_in_float32() -> None:
    from efficientbench.model.kernels.biased_attention import biased_causal_attention

    generator = torch.Generator().manual_seed(5)
    shapes = [(48, 1, count, 16) for count in (4, 2, 2)] + [(4, 48)]
    inputs = [torch.randn(shape, generator=generator).bfloat16().requires_grad_() for shape in shapes]
    found = biased_causal_attention(*inputs[:3], 0.25, inputs[3])
    found.sum().backward()
    assert {x.grad.dtype for x in inputs} == {found.dtype} == {torch.bfloat16}
    expected = dense_attention(*(x.float() for x in inputs[:3]), 0.25, inputs[3].float())
    assert relative_error(found.float(), expected) < 2**-8


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_flex_attention_is_given_the_same_bias_and_mask(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention.flex_attention import flex_attention as uncompiled

    from efficientbench.model.kernels import biased_attention_flex, flex

    monkeypatch.setattr(flex, "compiled", lambda: uncompiled)
    monkeypatch.setattr(flex, "compiled_with_sums", lambda: flex.attend_with_sums)

    generator = torch.Generator().manual_seed(6)
    shapes = [(40, 2, count, 16) for count in (4, groups, groups)] + [(4, 40)]
    query, key, value, bias = (torch.randn(shape, generator=generator) for shape in shapes)
    expected = dense_attention(query, key, value, 0.25, bias)
    for trained in (False, True):
        found = biased_attention_flex.attend(query, key, value, 0.25, bias.requires_grad_(trained))
        assert found.requires_grad == trained
        assert relative_error(found, expected) < 1e-6


@pytest.mark.proof
def test_the_bias_of_flex_attention_gets_its_gradient_from_a_kernel_that_sums_by_distance() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    script = ROOT / "tests" / "oracles" / "bias_gradient_in_interpreter.py"
    found = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True).stdout
    *errors, halves = (float(line) for line in found.split())
    assert len(errors) == 4
    assert max(errors) < 1e-5
    assert halves < 2e-3


@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 12), (2, 2), (7, 50)])
def test_buckets_equal_those_of_t5(buckets: int, max_distance: int) -> None:
    from efficientbench.model.position import bucket

    t5 = t5_attention(RelativeConfig(buckets=buckets, max_distance=max_distance), heads=1)
    distances = torch.arange(5000)
    expected = t5._relative_position_bucket(
        -distances, bidirectional=False, num_buckets=buckets, max_distance=max_distance
    )
    assert torch.equal(bucket(distances, buckets, max_distance), expected)


@pytest.mark.parametrize("heads", [1, 2, 8, 12, 14, 16, 20])
def test_slopes_equal_those_of_bloom(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    from efficientbench.model.position import slopes

    expected = build_alibi_tensor(torch.ones(1, 2), heads, torch.float64)[:, 0, 1]
    torch.testing.assert_close(torch.tensor(slopes(heads), dtype=torch.float64), expected, rtol=1e-6, atol=0)
