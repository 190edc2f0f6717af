"""Layouts and lengths of runs: the arithmetic, and each refusal with its numbers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from efficientbench.architecture.registry import ATTENTION
from efficientbench.basics.errors import ConfigError
from efficientbench.config.budget import plan_budget
from efficientbench.config.layout import Layout, check_documents, fit_micro_batch, padded_vocab_size
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.metrics.formulas.statistics import SURE_STEPS

SPLIT = ("parallel.tp=2", "parallel.sp=true")


def layout(*overrides: str, name: str = "gqa_1.5B", devices: int = 8, nodes: int = 1, cpu: bool = False) -> Layout:
    return Layout.of(resolve(name, overrides=overrides), devices, nodes, oversubscribe=cpu)


def test_unset_dp_uses_all_accelerators() -> None:
    found = layout("parallel.tp=2", "parallel.pp=2", "training.micro_batch_size=1", nodes=2)
    assert (found.world_size, found.dp, found.ranks_per_node) == (16, 4, 8)
    assert (found.layers_per_stage, found.micro_batches) == (14, 4)


def test_unset_dp_on_a_cpu_is_the_smallest_that_covers_every_node() -> None:
    assert layout(devices=1, cpu=True).world_size == 1
    assert layout("parallel.tp=2", "parallel.pp=2", devices=1, cpu=True).world_size == 4
    assert layout(devices=1, nodes=2, cpu=True).dp == 2
    assert layout("parallel.tp=2", devices=1, nodes=2, cpu=True).dp == 1


@pytest.mark.parametrize(
    ("name", "overrides", "devices", "micro_batch"),
    [
        ("gqa_0.5B", [], 8, 2),
        ("gqa_0.5B", [], 16, 1),
        ("gqa_0.5B", [], 4, 4),
        ("gqa_0.5B", ["training.micro_batch_size=3"], 1, 2),
        ("gqa_0.5B", ["training.global_batch_size=24"], 8, 3),
        ("gqa_0.5B", ["parallel.dp=8"], 8, 4),
        ("gqa_0.5B", [], 32, 4),
        ("gqa_0.5B", [], 7, 4),
    ],
)
def test_an_unset_dp_shrinks_the_micro_batch_to_fit(
    name: str, overrides: list[str], devices: int, micro_batch: int
) -> None:
    """A dp that the configuration sets shrinks nothing, and the layout refuses where no micro-batch fits."""
    config = resolve(name, overrides=overrides)
    fitted = fit_micro_batch(config, devices, nodes=1)
    assert fitted.training.micro_batch_size == micro_batch
    assert fitted.model_copy(update={"training": config.training}) == config


@pytest.mark.parametrize("smoke", [False, True])
@pytest.mark.parametrize("size", ["0.5B", "1.5B", "3B"])
def test_every_size_runs_on_eight_devices_without_overrides(size: str, smoke: bool) -> None:
    config = fit_micro_batch(resolve(f"gqa_{size}", smoke=smoke), 8, nodes=1)
    assert Layout.of(config, 8).dp == 8


def test_set_dp_may_leave_devices_idle() -> None:
    assert layout("parallel.dp=2", "parallel.tp=2").world_size == 4


@pytest.mark.parametrize(
    ("overrides", "devices", "nodes", "message"),
    [
        (["parallel.tp=3"], 8, 1, "= 3 × 1 × 1 = 3 must divide the 8 devices (1 × 8)"),
        (["parallel.tp=4", "parallel.pp=4"], 8, 1, "= 4 × 1 × 4 = 16 must divide the 8 devices"),
        (["parallel.dp=16", "training.micro_batch_size=1"], 8, 1, "= 16 ranks, but there are 8 devices (1 × 8)"),
        (["parallel.tp=2"], 1, 1, "= 2 × 1 × 1 = 2 must divide the 1 device (1 × 1)"),
        (["parallel.dp=2", "training.micro_batch_size=1"], 1, 1, "= 2 ranks, but there is 1 device (1 × 1)"),
        (["parallel.dp=1"], 8, 2, "= 1 rank cannot be spread evenly over 2 nodes"),
        (["parallel.tp=8"], 8, 1, "8 does not divide the 12 heads"),
        (["parallel.tp=3"], 3, 1, "3 is neither a divisor nor a multiple of the 2 query groups"),
        (["parallel.tp=7", "model.heads=14", "model.attention.query_groups=1"], 7, 1, "widths 2 × 1 × 128"),
        (["parallel.tp=2", "model.ffn_hidden_size=8961"], 8, 1, "2 does not divide the feed-forward width 8961"),
        (["parallel.tp=2", "parallel.sp=1", "training.seq_len=33"], 8, 1, "tp 2 does not divide the sequence of 33"),
        (["parallel.sp=1"], 8, 1, "set parallel.tp above 1"),
        (["parallel.pp=8"], 8, 1, "8 stages do not divide the 28 layers"),
        (["parallel.pp=2", "parallel.vpp=3"], 8, 1, "2 × 3 = 6 virtual stages do not divide the 28 layers"),
        (["parallel.vpp=2"], 8, 1, "set parallel.pp above 1"),
        (["parallel.pp=4", "parallel.vpp=7", "parallel.dp=4"], 16, 1, "parallel.pp = 4, which does not divide the 2"),
        (["parallel.cp=2", "training.seq_len=30"], 8, 1, "2 × 2 do not divide its 30 tokens"),
        (["parallel.cp=2", "parallel.tp=4", "parallel.sp=1", "training.seq_len=36"], 8, 1, "the 18 tokens that one of"),
        (["parallel.cp=3"], 8, 1, "= 1 × 3 × 1 = 3 must divide the 8 devices"),
        (["training.global_batch_size=12"], 8, 1, "12 is not a multiple of micro_batch_size × dp = 2 × 8"),
        (["data.split=[0,1,0]"], 8, 1, "leaves nothing to train on"),
    ],
)
def test_impossible_layouts_are_refused(overrides: list[str], devices: int, nodes: int, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        layout(*overrides, devices=devices, nodes=nodes)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("moe_1.5Bx8", ["parallel.tp=2"], "experts would count it 2 times: set parallel.sp=true"),
        ("moe_1.5Bx8", ["parallel.ep=3", "parallel.dp=3"], "3 does not divide the 8 experts (model.moe.experts)"),
        (
            "moe_1.5Bx8",
            ["parallel.ep=4", "parallel.dp=2"],
            "4 does not divide the 2 data-parallel ranks (parallel.dp × parallel.cp)",
        ),
        (
            "moe_fine_shared_1.5Bx8",
            ["parallel.tp=3", "model.heads=12", "parallel.sp=true", "parallel.ep=2", "model.ffn_hidden_size=80"],
            "parallel.tp: 3 does not divide the feed-forward width 160",
        ),
        ("moe_1.5Bx8", ["parallel.ep=16"], "16 does not divide the 8 experts"),
        ("moe_1.5Bx8", ["model.moe.top_k=9"], "top_k 9 is more than the 8 experts"),
        ("moe_1.5Bx8", ["model.moe.auxiliary_over=batch"], "'micro_batch', 'sequence' or 'global'"),
        ("moe_1.5Bx8", [*SPLIT, "model.ffn_hidden_size=8961"], "2 does not divide the feed-forward width 8961"),
        ("gqa_1.5B", ["parallel.ep=2"], "2 ranks cannot share experts that the model does not have (model.moe)"),
        ("nsa_1.5B", ["parallel.tp=4"], "4 does not divide the 2 query groups (model.attention.query_groups): tensor"),
        (
            "learnable_absolute_1.5B",
            ["training.seq_len=2049", "training.micro_batch_size=1"],
            "2049 tokens are more than the 2048 positions",
        ),
        (
            "gqa_1.5B",
            ["data.attention_within_documents=true", "training.objective=sft"],
            "data.attention_within_documents: it separates documents, and training.objective=sft learns from",
        ),
        (
            "gqa_1.5B",
            ["data.attention_within_documents=true", "kernels.attention=flex"],
            "data.attention_within_documents would compile it for each document's length",
        ),
    ],
)
def test_layouts_that_a_variant_lacks_are_refused(name: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        layout(*overrides, name=name)


def test_attention_within_documents_is_refused_where_no_kernel_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve("nsa_1.5B", overrides=["data.attention_within_documents=true"])
    check_documents(config, "cpu")
    check_documents(resolve("nsa_1.5B"), "cuda")
    message = (
        "attention 'nsa' can on cpu alone, and not on cuda: leave it out, or set model.attention.kind to gqa or mla"
    )
    with pytest.raises(ConfigError, match=message):
        check_documents(config, "cuda")
    silent = replace(ATTENTION["nsa"], within_documents=None)
    monkeypatch.setitem(ATTENTION, "nsa", silent)
    with pytest.raises(ConfigError, match=r"attention 'nsa' does not declare that it can .*kind to gqa or mla"):
        Layout.of(config, 1, oversubscribe=True)


def test_an_unset_dp_fits_expert_parallelism() -> None:
    assert layout("parallel.ep=4", name="moe_1.5Bx8", devices=1, cpu=True).dp == 4
    overrides = ["parallel.ep=4", "training.global_batch_size=24"]
    assert layout(*overrides, name="moe_1.5Bx8", devices=1, nodes=3, cpu=True).dp == 12
    assert layout("parallel.ep=4", name="moe_1.5Bx8").dp == 8


def test_experts_are_tensor_or_expert_parallel_but_not_both() -> None:
    # A width that tensor parallelism could not split does not matter where experts stay whole.
    assert layout(*SPLIT, "model.ffn_hidden_size=8961", "parallel.ep=2", name="moe_1.5Bx8").ep == 2


def test_a_sequence_may_be_as_long_as_the_table_of_positions() -> None:
    overrides = ["training.seq_len=2049", "training.micro_batch_size=1"]
    assert layout(*overrides, "model.position.max_seq_len=2049", name="learnable_absolute_1.5B").tp == 1
    assert layout(*overrides, name="absolute_1.5B").tp == 1


def test_all_refusals_of_a_layout_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        layout("parallel.tp=5", "parallel.pp=3", "training.global_batch_size=3", "data.split=[0,1,0]")
    assert len(caught.value.problems) == 6


def test_one_query_group_may_be_shared_by_tensor_parallel_ranks() -> None:
    assert layout("parallel.tp=2", name="mqa_1.5B").tp == 2
    assert layout("parallel.tp=4").tp == 4


@pytest.mark.parametrize(("vocab", "tp", "padded"), [(151_936, 1, 151_936), (151_936, 8, 151_936), (4097, 2, 4098)])
def test_the_padded_vocabulary_matches_known_sizes(vocab: int, tp: int, padded: int) -> None:
    assert padded_vocab_size(vocab, tp) == padded


def test_the_default_budget_is_extended_to_the_steps_that_measurement_needs() -> None:
    budget = plan_budget(resolve("gqa_1.5B"), 1000)
    assert budget.steps == budget.warmup_steps + SURE_STEPS == 405
    assert (budget.tokens, budget.time_limit_s) == (405 * 16 * 2048, 600)
    assert budget.extended is not None
    assert "100,000 tokens is 4 steps of 32,768; extended to 405 steps" in budget.extended
    assert "those that 10 minutes hold, and 50 at least, are measured" in budget.extended


def test_the_default_budget_stays_where_it_suffices() -> None:
    budget = plan_budget(resolve("gqa_1.5B", overrides=["training.seq_len=20", "training.global_batch_size=8"]), 1000)
    assert (budget.steps, budget.tokens, budget.time_limit_s) == (625, 100_000, 600)
    assert (budget.extended or "").startswith("no length is set: 625 steps; those that 10 minutes hold")


@pytest.mark.parametrize(
    ("override", "steps"),
    [
        *(("measurement.min_steps=20", 25), ("measurement.min_steps=50", 55), ("measurement.profile_steps=2", 55)),
        *(("training.deterministic=true", 55), ("training.steps=60", 60), ("training.tokens=2000000", 62)),
        *(("training.objective=sft", 55), ("training.epochs=2", 55), ("checkpoint.at_tokens=[1000000]", 55)),
    ],
)
def test_time_ends_no_run_whose_length_is_set_or_must_not_vary(override: str, steps: int) -> None:
    budget = plan_budget(resolve("gqa_1.5B", overrides=[override]), 1000)
    assert (budget.steps, budget.time_limit_s) == (steps, None)


def test_tokens_may_be_given_per_parameter() -> None:
    config = resolve("gqa_1.5B", overrides=["training.tokens=20x"])
    budget = plan_budget(config, 1_000_001)
    # 20,000,020 tokens are 610.4 steps of 32,768.
    assert (budget.steps, budget.tokens) == (611, 611 * 32_768)
    assert budget.tokens_per_parameter == 611 * 32_768 / 1_000_001
    half = resolve("gqa_1.5B", overrides=["training.tokens=0.5x"])
    assert plan_budget(half, 10_000_000).steps == 153
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_token_budgets_are_rounded_up_to_steps() -> None:
    budget = plan_budget(resolve("gqa_1.5B", overrides=["training.tokens=1802241"]), 1000)
    assert budget.steps == 56


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.tokens=100000"], "100,000 tokens at 32,768 a step: 4 of the 55 steps that 5 of warm-up and 50 "),
        (
            ["training.tokens=100000"],
            "set training.tokens=1802240, or lower measurement.warmup_steps or measurement.min",
        ),
        (["training.steps=3"], "training.steps: 3 of the 55 steps"),
        *(
            ([f"checkpoint.at_tokens=[40000,{at}]", "training.steps=60"], f"checkpoint.at_tokens: {at:,} is not within")
            for at in (32_767, 60 * 32_768)
        ),
        (
            ["training.lr_warmup_tokens=2000000", "training.steps=60"],
            "training.lr_warmup_tokens: 2,000,000 are 61 steps, and the rate falls over 0: more than the run's 60",
        ),
        (
            ["training.lr_warmup_tokens=1638400", "training.steps=60", "training.lr_schedule=wsd"],
            "training.lr_warmup_tokens: 1,638,400 are 50 steps, and the rate falls over 12: more than the run's 60",
        ),
        (
            ["data.order_tokens=100000", "training.steps=60"],
            "data.order_tokens: 100,000 are fewer than the run's 1,966,080 tokens",
        ),
        (["training.tokens=20x"], "training.tokens: 20x is 20,000 tokens at 32,768 a step: 1 of the 55 steps"),
        (["training.steps=60", "training.tokens=20x"], "training.tokens: 20x and training.steps 60 both set"),
        (["training.steps=60", "training.tokens=1000000"], "both set the length; set one"),
        (["training.steps=60", "training.epochs=2"], "training.steps: 60 and training.epochs 2 both set the length"),
    ],
)
def test_impossible_budgets_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        plan_budget(resolve("gqa_1.5B", overrides=overrides), 1000)


def test_epochs_become_the_steps_that_the_text_fills() -> None:
    config = resolve("gqa_1.5B", overrides=["training.epochs=2"])
    unknown, budget = plan_budget(config, 1000), plan_budget(config, 1000, epoch_steps=70)
    assert (unknown.steps, unknown.counted, unknown.tokens_per_parameter) == (55, False, None)
    assert (budget.steps, budget.counted) == (70, True)
    with pytest.raises(ConfigError, match=re.escape("training.epochs: 2 are 54 of the 55 steps that 5 of warm-up")):
        plan_budget(config, 1000, epoch_steps=54)


def test_an_explicitly_short_run_is_accepted() -> None:
    overrides = ["training.steps=3", "measurement.warmup_steps=1", "measurement.min_steps=2"]
    assert plan_budget(resolve("gqa_0.5B", overrides=overrides), 1000).steps == 3


def test_context_parallel_ranks_multiply() -> None:
    found = layout("parallel.cp=2", "parallel.tp=2", devices=8)
    assert (found.world_size, found.cp, found.dp) == (8, 2, 2)
    assert layout("parallel.cp=2", "parallel.ep=4", name="moe_1.5Bx8", devices=1, cpu=True).dp == 2


def test_interleaved_stages_get_complete_rounds_of_micro_batches() -> None:
    config = resolve("gqa_0.5B", overrides=["parallel.pp=2", "parallel.vpp=2"])
    fitted = fit_micro_batch(config, 8, nodes=1)
    assert Layout.of(fitted, 8).micro_batches == 2
