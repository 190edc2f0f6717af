"""Positional encodings against transformers' GPT-2, T5 and Bloom in front of its Qwen2, and against formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from support.configs import tiny
from support.positions import Oracle, t5_attention
from support.qwen2 import to_qwen2

from efficientbench import cost
from efficientbench.config.schema import RelativeConfig, RunConfig

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT

pytestmark = pytest.mark.usefixtures("single_rank")

ENCODINGS = {
    "rope": [],
    "absolute": [],
    "learnable_absolute": ["model.position.max_seq_len=20"],
    # So few distances are enough for every bucket.
    "relative": ["model.position.buckets=8", "model.position.max_distance=12"],
    "none": [],
}


def configuration(kind: str, *overrides: str) -> RunConfig:
    if kind == "alibi":
        return tiny("rope_1.5B", "model.position.kind=alibi", "model.heads=6", "model.init_std=0.2", *overrides)
    return tiny(f"{kind}_1.5B", "model.init_std=0.2", *ENCODINGS[kind], *overrides)


def build(config: RunConfig) -> GPT:
    """A model whose norms and biases are not ones and zeros, which would hide mistakes."""
    from efficientbench.model.gpt import build_stage

    model = build_stage(config, torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    return model


def text(config: RunConfig, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(config.model.vocab_size, (2, length), generator=generator)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, relative to the largest expected value."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("kind", [*ENCODINGS, "alibi"])
def test_logits_loss_and_gradients_equal_the_oracle(kind: str) -> None:
    from efficientbench.model.initial_weights import global_parameters
    from efficientbench.training.optimizer import wrap_data_parallel

    config = configuration(kind)
    model = build(config)
    parameters = global_parameters(model)
    oracle = Oracle({key: parameter.detach().clone() for key, parameter in parameters.items()}, config.model)
    sequence = text(config, config.training.seq_len + 1)
    tokens, labels = sequence[:, :-1], sequence[:, 1:]

    expected = oracle(tokens)
    expected_loss = torch.nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten(), reduction="sum")
    expected_loss.backward()
    wrapped = wrap_data_parallel(model, config)
    logits = wrapped(tokens)
    loss = wrapped(tokens, labels, torch.ones_like(labels))
    loss.backward()

    assert relative_error(logits, expected) < 1e-5
    assert relative_error(loss, expected_loss) < 1e-5
    ours = {key: parameter.main_grad for key, parameter in parameters.items()}
    table = ours.pop("position_table", None)
    assert (table is None) == (oracle.table is None) == (kind not in ("learnable_absolute", "relative"))
    if table is not None:
        assert relative_error(table, oracle.table.grad) < 1e-5
        assert (oracle.table.grad[: config.training.seq_len] != 0).any(dim=1).all()
    gradients = to_qwen2(ours, config.model)
    expected_gradients = {key: parameter.grad for key, parameter in oracle.qwen2.named_parameters()}
    for key, gradient in expected_gradients.items():
        # Unrotated, a bias on the keys moves all scores of a query alike: its gradient is zero but for rounding.
        vanishes = key.endswith("k_proj.bias") and kind != "rope"
        scale = expected_gradients[key.replace("bias", "weight")] if vanishes else gradient
        assert (gradients[key] - gradient).abs().max() < 1e-5 * scale.abs().max(), key


@pytest.mark.parametrize("kind", [*ENCODINGS, "alibi"])
def test_a_changed_token_leaves_what_comes_before_it(kind: str) -> None:
    config = configuration(kind)
    model, tokens = build(config), text(config, config.training.seq_len)
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % config.model.vocab_size
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert (before[:, 9:] != after[:, 9:]).any(dim=2).all()


@pytest.mark.parametrize("kind", [*ENCODINGS, "alibi"])
def test_only_without_positions_the_order_of_earlier_tokens_is_lost_on_one_layer(kind: str) -> None:
    config = configuration(kind, "model.layers=1")
    model, tokens = build(config), text(config, config.training.seq_len)
    order = torch.cat([torch.randperm(15, generator=torch.Generator().manual_seed(3)), torch.tensor([15])])
    error = relative_error(model(tokens[:, order])[:, -1], model(tokens)[:, -1])
    assert error < 1e-6 if kind == "none" else error > 1e-3


@pytest.mark.parametrize("kind", [*ENCODINGS, "alibi"])
def test_parameters_and_flops_equal_those_of_the_formulas(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from efficientbench.model import context_parallel
    from efficientbench.model.attention import gqa

    config = configuration(kind)
    model, tokens = build(config), text(config, config.training.seq_len)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert cost.parameters(config.model).total == counted
    # The counter sees matmuls only.
    monkeypatch.setattr(context_parallel, "causal_attention", dense_attention)
    monkeypatch.setattr(gqa, "biased_causal_attention", dense_attention)
    with FlopCounterMode(display=False) as counter:
        model(tokens)
    flops = cost.flops_per_token(config.model, config.training.seq_len)
    assert flops.forward_full_square * tokens.numel() == counter.get_total_flops()


def dense_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Attention as its formula says, with all scores at once."""
    sequence, _, heads, _ = query.shape
    query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
    key, value = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    distance = torch.arange(sequence)[:, None] - torch.arange(sequence)
    scores = query @ key.transpose(-1, -2) * scale
    if bias is not None:
        scores = scores + bias[:, distance.clamp(min=0)]
    probabilities = scores.masked_fill(distance < 0, -torch.inf).softmax(dim=-1)
    return (probabilities @ value).permute(2, 0, 1, 3).flatten(2)


@pytest.mark.parametrize("rows", [16, 37, 64])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_biased_attention_in_blocks(rows: int, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_flex_attention_is_given_the_same_bias_and_mask(groups: int) -> None:
    from torch.nn.attention.flex_attention import flex_attention as uncompiled

    from efficientbench.model.kernels.biased_attention import flex_attention

    generator = torch.Generator().manual_seed(6)
    shapes = [(40, 2, count, 16) for count in (4, groups, groups)] + [(4, 40)]
    query, key, value, bias = (torch.randn(shape, generator=generator) for shape in shapes)
    found = flex_attention(query, key, value, 0.25, bias, uncompiled)
    assert relative_error(found, dense_attention(query, key, value, 0.25, bias)) < 1e-6


@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 12), (2, 2), (7, 50)])
def test_buckets_equal_those_of_t5(buckets: int, max_distance: int) -> None:
    from efficientbench.model.position.relative import bucket

    t5 = t5_attention(RelativeConfig(buckets=buckets, max_distance=max_distance), heads=1)
    distances = torch.arange(5000)
    expected = t5._relative_position_bucket(
        -distances, bidirectional=False, num_buckets=buckets, max_distance=max_distance
    )
    assert torch.equal(bucket(distances, buckets, max_distance), expected)


@pytest.mark.parametrize("heads", [1, 2, 8, 12, 14, 16, 20])
def test_slopes_equal_those_of_bloom(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    from efficientbench.model.position.alibi import slopes

    expected = build_alibi_tensor(torch.ones(1, 2), heads, torch.float64)[:, 0, 1]
    torch.testing.assert_close(torch.tensor(slopes(heads), dtype=torch.float64), expected, rtol=1e-6, atol=0)
