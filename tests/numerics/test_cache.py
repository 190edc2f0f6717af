"""Decoding from a cache gives the logits of one forward pass over the whole sequence, in every architecture."""

from __future__ import annotations

import sys

import pytest
import torch
from oracles.oracle import build, relative_error, text
from support.configs import ATTENTIONS, ENCODINGS, MODELS, chosen, decodes, tiny_model
from support.decoding import from_cache, in_parts

from efficientbench.config.schema import RunConfig

pytestmark = pytest.mark.usefixtures("single_rank")

LENGTH = 64
CASES = chosen(MODELS, decodes)


def configuration(case: str, *overrides: str) -> RunConfig:
    return tiny_model(case, "model.init_std=0.2", f"training.seq_len={LENGTH}", *overrides)


PARTS = {
    "few": ((5, 7), (LENGTH - 9, 1), (LENGTH, 1)),
    "many": ((1, 1), (5, 3), (23, 1), (40, 3)),
}
"""Tokens that are computed first, and at a time after them."""


@pytest.mark.parametrize("parts", ["few", pytest.param("many", marks=pytest.mark.proof)])
@pytest.mark.parametrize("case", CASES)
def test_decoding_in_parts_gives_the_logits_of_one_pass(case: str, parts: str) -> None:
    config = configuration(case)
    model, tokens = build(config).eval(), text(config, LENGTH)
    with torch.no_grad():
        whole = model(tokens)
    for prefill, chunk in PARTS[parts]:
        error = relative_error(from_cache(model, tokens, in_parts(LENGTH, prefill, chunk)), whole)
        assert error < 1e-5, f"{prefill} tokens, then {chunk} at a time"


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_decoding_in_parts_gives_the_logits_of_one_pass_on_a_gpu(case: str) -> None:
    config, device = configuration(case), torch.device("cuda", 0)
    model, tokens = build(config, device).eval(), text(config, LENGTH).to(device)
    with torch.no_grad():
        whole = model(tokens)
    for prefill, chunk in PARTS["few"]:
        found = from_cache(model, tokens, in_parts(LENGTH, prefill, chunk))
        assert found.device == device
        # Products of a token and of many are summed in different orders.
        assert relative_error(found, whole) < 1e-4, f"{prefill} tokens, then {chunk} at a time"


@pytest.mark.parametrize("new", [9, pytest.param(LENGTH - 30, marks=pytest.mark.proof)])
@pytest.mark.parametrize("case", CASES)
def test_rows_of_different_lengths_have_the_logits_of_single_rows(case: str, new: int) -> None:
    from efficientbench.model.cache import Cache

    config = configuration(case)
    model, tokens = build(config).eval(), text(config, LENGTH).repeat(2, 1)
    prompts = torch.tensor([3, 30, 14, 23])
    with torch.no_grad():
        whole = model(tokens)
    rows = torch.arange(len(prompts))
    cache = Cache(model, len(prompts), LENGTH)
    with torch.no_grad(), cache.bound():
        cache.counts.copy_(prompts)
        # Behind its own tokens a row has others, which must leave no trace.
        filled = torch.where(torch.arange(int(prompts.max())) < prompts[:, None], tokens[:, : int(prompts.max())], 7)
        first = model(filled, only=prompts - 1)[:, 0]
        cache.advance()
        assert relative_error(first, whole[rows, prompts - 1]) < 1e-5
        for step in range(new):
            at = prompts + step
            logits = model(tokens[rows, at][:, None])[:, 0]
            cache.advance()
            assert relative_error(logits, whole[rows, at]) < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_expanded_and_selected_rows_continue_independently(case: str) -> None:
    from efficientbench.model.cache import Cache

    config = configuration(case)
    model, tokens = build(config).eval(), text(config, LENGTH)
    with torch.no_grad():
        whole = model(tokens)
    cache = Cache(model, 2, LENGTH)
    with torch.no_grad(), cache.bound():
        cache.counts.fill_(20)
        model(tokens[:, :20])
        cache.advance()
        cache.expand(3)
        assert cache.rows == 6
        first = model(tokens[:, 20:21].repeat_interleave(3, dim=0))
        cache.advance()
        assert relative_error(first[:, 0], whole[:, 20].repeat_interleave(3, dim=0)) < 1e-5
        cache.select(torch.tensor([4, 0]))
        assert cache.rows == 2
        second = model(tokens[[1, 0], 21:22])
        assert relative_error(second[:, 0], whole[[1, 0], 21]) < 1e-5


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_a_cache_takes_the_bytes_of_the_formula(case: str, dtype: str) -> None:
    from efficientbench.costs.model import cache_bytes
    from efficientbench.model.cache import Cache

    config = configuration(case, f"training.dtype={dtype}")
    model = build(config)
    for tokens in (1, 10, LENGTH):
        cache, wanted = Cache(model, 3, tokens), 3 * cache_bytes(config.model, tokens, dtype)
        assert cache.bytes == wanted
        with torch.no_grad(), cache.bound():
            model(text(config, tokens).repeat(2, 1)[:3])
        # Nothing was put beside what was allocated.
        assert cache.bytes == wanted


@pytest.mark.proof
@pytest.mark.parametrize("case", CASES)
def test_bf16_decoding_rounds_no_more_than_one_pass(case: str) -> None:
    config, wide = configuration(case, "training.dtype=bf16"), configuration(case)
    model, exact, tokens = build(config).eval(), build(wide).eval(), text(config, LENGTH)
    with torch.no_grad():
        for own, other in zip(exact.parameters(), model.parameters(), strict=True):
            own.copy_(other)
        wanted, whole = exact(tokens), model(tokens)

    def error(logits: torch.Tensor) -> float:
        return (logits.float() - wanted).square().mean().sqrt().item()

    found = error(from_cache(model, tokens, in_parts(LENGTH, 23, 1)))
    assert 0 < found < 1.5 * error(whole)


TRACED = [
    *(case for case in CASES if case in ATTENTIONS and "," not in case and case != "gqa"),
    *chosen(ENCODINGS, lambda config: config.model.position_variant.place == "scores"),
    "nanochat",
]
"""Beside GQA; compiling takes seconds each."""


@pytest.mark.xfail(
    sys.version_info[:2] == (3, 13),
    raises=AssertionError,
    strict=False,
    reason="torch 2.13 does not trace nested with blocks in the bytecode of Python 3.13.0",
)
@pytest.mark.parametrize("case", ["gqa", *(pytest.param(case, marks=pytest.mark.proof) for case in TRACED)])
def test_a_decoding_step_is_one_graph_compiled_once(case: str) -> None:
    from efficientbench.model.cache import Cache

    config = configuration(case)
    model, tokens = build(config).eval(), text(config, 52)
    wanted = from_cache(model, tokens, [20, *[1] * 32])
    torch._dynamo.reset()
    step = torch.compile(model, backend="eager", fullgraph=True)
    cache = Cache(model, 2, 52)
    with torch.no_grad(), cache.bound(), torch._dynamo.config.patch(error_on_recompile=True):
        cache.counts.fill_(20)
        model(tokens[:, :20])
        cache.advance()
        for at in range(20, 52):
            assert relative_error(step(tokens[:, at : at + 1])[:, 0], wanted[:, at]) < 1e-5
            cache.advance()


def test_a_model_continues_from_one_cache_at_a_time() -> None:
    from efficientbench.model.cache import Cache

    model = build(configuration("gqa"))
    with Cache(model, 1, 4).bound():
        with pytest.raises(RuntimeError, match="one cache at a time"), Cache(model, 1, 4).bound():
            pass
        assert model.cache is not None
    assert model.cache is None
    assert all(getattr(module, "state", None) is None for module in model.modules())
