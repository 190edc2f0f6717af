"""Measured generation: what a decoding step reads is counted, and steps that are measured again are the same steps."""

from __future__ import annotations

import pytest
import torch
from oracles.oracle import build, relative_error
from support.configs import tiny
from support.reads import read_by_a_step

from efficientbench.config.schema import RunConfig
from efficientbench.costs.generation import cache_bytes_read, weight_bytes_read
from efficientbench.costs.model import cache_bytes
from efficientbench.devices.registry import find_device
from efficientbench.generation.decoder import Decoder, compiled_step
from efficientbench.generation.measuring.measure import Setting, measure, prompts_of
from efficientbench.generation.memory import Case

pytestmark = pytest.mark.usefixtures("single_rank")

HYBRIDS = ("swa_3to1_1.5B", "gdn_3to1_1.5B", "kda_3to1_1.5B", "mamba2_3to1_1.5B")
RUNS = ("gqa_1.5B", "mqa_1.5B", "mla_1.5B", "nsa_1.5B", "moe_1.5Bx8", "gdn_1.5B", "mamba2_1.5B", *HYBRIDS)


# NSA: lengths from which there are as many blocks as a query chooses.
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("tied", [True, False])
def test_the_bytes_read_by_a_step_match_the_formulas(name: str, tied: bool) -> None:
    config = tiny(name, f"model.tied={str(tied).lower()}", "model.layers=4")
    model, moe = build(config), config.model.moe
    for rows, length in ((1, 64), (3, 80)):
        weights, kept, _ = read_by_a_step(model, rows, length, room=96)
        # A product of all experts names the weights of all of them.
        experts = None if moe is None else float(moe.experts)
        assert weights == weight_bytes_read(config.model, rows, "fp32", experts)
        assert kept == rows * cache_bytes_read(config.model, length, "fp32")
    if moe is not None:
        one = config.model.layers * config.model.feed_forward_parameters * 4
        assert weights - weight_bytes_read(config.model, 3, "fp32", moe.experts - 1.0) == one


def test_rows_of_a_position_table_are_looked_up() -> None:
    config = tiny("learnable_absolute_1.5B", "model.position.max_seq_len=96")
    weights, kept, _ = read_by_a_step(build(config), 1, 80, room=96)
    assert weights == weight_bytes_read(config.model, 1, "fp32")
    assert kept == cache_bytes_read(config.model, 80, "fp32")


def test_nsa_reads_only_more_compressed_keys_in_longer_sequences() -> None:
    paper = ("compress_block=32", "compress_stride=16", "select_block=64", "select_count=16", "window=512")
    config = tiny("nsa_1.5B", "model.layers=1", *(f"model.attention.{each}" for each in paper))
    model = build(config)
    short, long = (read_by_a_step(model, 1, length, room=16384)[2] for length in (4096, 16384))
    grown = {name for name in short if short[name] != long[name]}
    assert grown == {"cache 0 compressed_keys", "cache 0 compressed_values"}
    groups, dim = config.model.attention.query_groups, config.model.head_dim  # type: ignore[attr-defined]
    assert long["cache 0 selected_keys"] == 16 * 64 * groups * dim * 4
    assert long["cache 0 compressed_keys"] == 1023 * groups * dim * 4


def setting_of(config: RunConfig) -> Setting:
    return Setting(build(config).eval(), config, find_device("cpu"), 1e9, "by hand", repeats=2, least_s=0.0)


@pytest.mark.parametrize("name", ["gqa_1.5B", "moe_1.5Bx8"])
def test_a_row_has_every_figure_or_a_reason(name: str) -> None:
    config, case = tiny(name, "device=cpu"), Case(prompt_tokens=9, batch=3, max_new_tokens=5)
    row, _ = measure(setting_of(config), case)
    assert row.prefill is not None
    assert row.decode is not None
    assert (row.prefill.repeats, row.prefill.steps) == (2, 2)
    assert (row.decode.repeats, row.decode.steps) == (2, 2 * 4)
    assert 0 < row.prefill.time_s < row.ttft_s  # type: ignore[operator]
    assert row.ttft_s_p50 <= row.ttft_s_p95  # type: ignore[operator]
    assert row.cache_bytes == cache_bytes(config.model, 14, "fp32")
    assert row.decode.tokens_per_s == pytest.approx(3 / row.decode.time_s)  # type: ignore[operator]
    assert row.bytes_needed < row.bytes_read  # type: ignore[operator]
    assert row.bandwidth_utilization == pytest.approx(row.bytes_needed / row.decode.time_s / 1e9)  # type: ignore[operator]
    moe = config.model.moe
    if moe is None:
        assert row.why("experts_touched") == "the model has no experts"
    else:
        assert moe.top_k <= row.experts_touched <= min(moe.experts, 3 * moe.top_k)  # type: ignore[operator]


@pytest.mark.parametrize("name", ["gqa_1.5B", "mla_1.5B"])
def test_steps_after_a_rewind_are_the_same(name: str) -> None:
    config = tiny(name)
    decoder = Decoder(build(config).eval(), prompts_of(Case(9, 2, 6), config.model.vocab_size), 6)
    with decoder.bound():
        decoder.prefill()
        first = [decoder.step([step, step]) for step in range(1, 6)]
        decoder.rewind()
        for step, logits in enumerate(first, start=1):
            assert torch.equal(decoder.step([step, step]), logits)


@pytest.mark.proof
def test_compiled_steps_have_the_same_logits_and_a_graph_for_each_reach() -> None:
    config = tiny("gqa_1.5B")
    model, prompts = build(config).eval(), prompts_of(Case(253, 2, 8), config.model.vocab_size)
    step = compiled_step(model)
    compiled, other = Decoder(model, prompts, 8, step), Decoder(model, prompts, 8)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with compiled.bound():
        compiled.prefill()
        # The fourth token is the 257th.
        found = [compiled.step([token, token]) for token in range(7)]
    with other.bound():
        other.prefill()
        wanted = [other.step([token, token]) for token in range(7)]
    assert relative_error(torch.stack(found), torch.stack(wanted)) < 1e-5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - graphs == 2
