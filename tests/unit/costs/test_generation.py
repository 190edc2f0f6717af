"""What generation computes and reads: by hand, and by trying all choices of experts."""

from __future__ import annotations

from itertools import combinations, product
from math import comb
from pathlib import Path

import pytest
from support import outside

from efficientbench.architecture.variant import UndeclaredError
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.costs.generation import (
    cache_bytes_read,
    decode_work,
    experts_touched,
    generation_bytes,
    largest_batch,
    prefill_work,
    weight_bytes_read,
)
from efficientbench.costs.memory import rank_experts, rank_parameters
from efficientbench.costs.model import cache_bytes, count_parameters, flops_per_token


def flops(work: dict[str, tuple[object, ...]]) -> float:
    return sum(each.flops for works in work.values() for each in works)


def test_a_prompt_computes_the_forward_pass_with_the_logits_of_its_last_token_alone() -> None:
    for name in ("gqa_1.5B", "mla_1.5B", "nsa_1.5B", "moe_1.5Bx8"):
        model = resolve(name).model
        logits = 2 * model.hidden_size * model.vocab_size
        whole = 2048 * (flops_per_token(model, 2048).forward - logits) + logits
        assert flops(prefill_work(model, 2048, 8, "bf16")) == 8 * whole


def test_decoding_reads_what_is_counted_by_hand() -> None:
    # 28 layers, 2 bytes an element, 2 groups with heads of 128.
    of_a_key_and_value = 28 * 2 * 2 * 2 * 128
    gqa, mqa, mla, nsa = (resolve(f"{name}_1.5B").model for name in ("gqa", "mqa", "mla", "nsa"))
    assert cache_bytes_read(gqa, 2048, "bf16") == of_a_key_and_value * 2048
    assert cache_bytes_read(mqa, 2048, "bf16") == of_a_key_and_value // 2 * 2048
    assert cache_bytes_read(mla, 2048, "bf16") == 28 * 2 * (384 + 64) * 2048
    # Compressed keys, 16 blocks of 64, the window, and the tokens of an unfinished block.
    assert cache_bytes_read(nsa, 16384, "bf16") == of_a_key_and_value * (1023 + 1024 + 512 + 31)
    assert cache_bytes_read(nsa, 4096, "bf16") == of_a_key_and_value * (255 + 1024 + 512 + 31)


def test_all_weights_of_a_dense_model_are_read_and_of_the_embedding_no_second_table() -> None:
    tied, untied = resolve("gqa_1.5B").model, resolve("gqa_1.5B", overrides=["model.tied=false"]).model
    assert weight_bytes_read(tied, 1, "bf16") == 2 * count_parameters(tied).total
    row = 2 * tied.hidden_size
    assert weight_bytes_read(untied, 1, "bf16") == weight_bytes_read(tied, 1, "bf16") + row


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_experts_touched_are_the_mean_over_all_choices(tokens: int) -> None:
    moe = {"experts": 4, "top_k": 2}
    model = resolve("moe_1.5Bx8", overrides=[f"model.moe.{key}={value}" for key, value in moe.items()]).model
    choices = list(product(combinations(range(4), 2), repeat=tokens))
    assert len(choices) == comb(4, 2) ** tokens
    mean = sum(len({expert for chosen in each for expert in chosen}) for each in choices) / len(choices)
    assert experts_touched(model, tokens) == pytest.approx(mean, rel=1e-12)


def test_a_step_reads_few_experts_and_a_prompt_all() -> None:
    model = resolve("moe_1.5Bx8").model
    parameters = count_parameters(model)
    few, all_of_them = (experts_touched(model, tokens) for tokens in (1, 10_000))
    assert weight_bytes_read(model, 1, "bf16", few) == 2 * parameters.active
    assert weight_bytes_read(model, 10_000, "bf16", all_of_them) == pytest.approx(2 * parameters.total, rel=1e-9)


def test_a_variant_that_declares_nothing_has_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside.lay_out(tmp_path, monkeypatch)
    kind = f"model.attention.kind={outside.PACKAGE}.window:VARIANT"
    model = resolve("gqa_1.5B", smoke=True, overrides=[kind, "device=cpu"]).model
    with pytest.raises(UndeclaredError, match="declares no formula for the state that decoding keeps"):
        prefill_work(model, 16, 1, "fp32")
    with pytest.raises(UndeclaredError, match="declares no formula for FLOPs of decoding"):
        decode_work(model, 16, 1, "fp32")


@pytest.mark.parametrize("name", ["gqa_1.5B", "mla_1.5B", "nsa_1.5B", "moe_1.5Bx8"])
def test_a_rank_holds_its_share_of_weights_and_cache(name: str) -> None:
    config = resolve(name, overrides=["parallel.tp=2", "parallel.sp=true", "parallel.dp=1"])
    layout = Layout.of(config, 2, oversubscribe=True)
    weights = 2 * (rank_parameters(config, layout, 0) + rank_experts(config, layout))
    assert generation_bytes(config.model, 1, 999, 0, "bf16", tp=2) == pytest.approx(weights, rel=1e-3)
    row = generation_bytes(config.model, 1, 999, 1, "bf16", 2) - generation_bytes(config.model, 1, 999, 0, "bf16", 2)
    assert row == pytest.approx(cache_bytes(config.model, 1000, "bf16", 2), rel=0.02)
    alone = largest_batch(config.model, 1, 999, "bf16", 80 * 10**9)
    assert largest_batch(config.model, 1, 999, "bf16", 80 * 10**9, tp=2) > alone
