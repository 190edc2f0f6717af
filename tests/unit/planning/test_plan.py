"""Plans: their tables, and the refusal of runs that do not fit, with remedies that help."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.printed import on_one_line

from efficientbench.basics.errors import ConfigError
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.matrix import load_matrix
from efficientbench.devices.base import DeviceError
from efficientbench.planning.fitting import check_fits, remedies
from efficientbench.planning.plan import Plan, make_plan, plan_anywhere
from efficientbench.planning.plan_table import print_matrix, print_plan

Rows = dict[str, list[str]]


def plan_of(name: str, *overrides: str, smoke: bool = False, devices: int | None = None, nodes: int = 1) -> Plan:
    config = resolve(name, smoke, overrides)
    if devices is None:
        return plan_anywhere(config)
    return make_plan(config, Layout.of(config, devices, nodes), runtime_bytes=410_000_000)


def refusal(plan: Plan, capacity_bytes: float, shared: bool) -> str:
    with pytest.raises(ConfigError) as caught:
        check_fits(plan, int(capacity_bytes), shared)
    return str(caught.value)


def test_a_gpu_gets_fused_kernels_and_larger_blocks_of_logits() -> None:
    on_cpu, on_gpu = plan_of("gqa_1.5B"), plan_of("gqa_1.5B", "device=cuda")
    assert (on_cpu.config.kernels.fused, on_gpu.config.kernels.fused) == (False, True)
    assert (on_cpu.config.kernels.loss_block, on_gpu.config.kernels.loss_block) == (2**24, 2**28)
    # With a loss scaler, whose table of gradients makes the loss need most also in small blocks.
    words = ("gqa_1.5B", "device=cuda", "training.dtype=fp16")
    scaled, unfused = plan_of(*words), plan_of(*words, "kernels.fused=false")
    assert unfused.config.kernels.fused is False
    # Logits and their gradient of 2^28 in fp16, instead of 2^24 in float32 and fp16, and their gradient.
    more = scaled.memory[0].workspace - unfused.memory[0].workspace
    assert more == (2**28 // 151_936) * 151_936 * 4 - (2**24 // 151_936) * 151_936 * 8


def test_a_plan_prints_its_figures() -> None:
    text = on_one_line(print_plan, plan_of("gqa_1.5B", "parallel.pp=2"))
    figures = ("1,543,714,304", "9,789,898,752", "32,768", "2 = tp 1 × pp 2 × dp 1", "stage 1", "28,672 B")
    for figure in (*figures, "extended to 405 steps", "10 minutes"):
        assert figure in text


def test_a_plan_names_the_keys_in_which_the_backbone_differs() -> None:
    text = on_one_line(print_plan, plan_of("gqa_1.5B", "model.tied=false", "model.activation=relu2"))
    assert "activation=relu2, tied=false" in text
    assert "backbone" not in on_one_line(print_plan, plan_of("gqa_1.5B"))


def test_a_plan_says_what_muon_changes() -> None:
    text = on_one_line(print_plan, plan_of("gqa_0.5B", "training.optimizer=muon", "training.matrix_learning_rate=0.05"))
    assert "muon (0.05) for layers' matrices; not the distributed optimizer" in text
    assert "muon momentum" in text
    assert "muon" not in on_one_line(print_plan, plan_of("gqa_0.5B"))


def test_a_plan_of_rl_includes_the_cache_of_concurrent_answers() -> None:
    batch = ("training.seq_len=999", "training.micro_batch_size=1", "training.global_batch_size=24", "rl.samples=4")
    words = ("gqa_1.5B", "training.objective=rl", *batch)
    text = on_one_line(print_plan, plan_of(*words, "rl.batch=11"))
    # Two of six questions: 8 times 1,000 tokens of 28,672 B.
    assert "at most 0.23 GB on a rank, for 8 answers; not in the estimate" in text
    # Of three replicas each has two questions, and the tensor-parallel ranks half of the heads.
    shared = plan_of(*words, "rl.batch=99", "parallel.dp=3", "parallel.tp=2", devices=6)
    assert "at most 0.11 GB on a rank, for 8 answers" in on_one_line(print_plan, shared)
    assert "cache of rollouts" not in on_one_line(print_plan, plan_of("gqa_1.5B"))


def test_a_plan_refuses_to_test_on_programs_before_it_looks_for_files() -> None:
    words = ("training.objective=rl", "rl.samples=4", "rl.max_new_tokens=32", "rl.task=humaneval", "rl.test_every=3")
    with pytest.raises(ConfigError, match=r"^rl\.test_every: the answers to humaneval are programs"):
        plan_of("gqa_1.5B", *words, smoke=True)


def test_the_runtime_is_that_of_the_named_device_type() -> None:
    assert plan_of("gqa_0.5B", "device=cuda").memory[0].runtime > plan_of("gqa_0.5B").memory[0].runtime
    with pytest.raises(DeviceError, match="device=tpu is not one of auto, cuda, npu, cpu"):
        plan_of("gqa_0.5B", "device=tpu")


def test_a_run_that_fits_is_accepted() -> None:
    plan = plan_of("gqa_1.5B")
    check_fits(plan, plan.rank_memory_bytes(), shared=False)
    assert "does not fit" in refusal(plan, plan.rank_memory_bytes() - 1, shared=False)


def test_ranks_of_a_node_share_a_cpus_memory() -> None:
    plan = plan_of("gqa_0.5B", "parallel.dp=2")
    capacity = 1.5 * plan.rank_memory_bytes()
    check_fits(plan, int(capacity), shared=False)
    assert "the ranks of a node together need about" in refusal(plan, capacity, shared=True)


def test_the_fullest_node_decides_whether_a_run_fits() -> None:
    plan = plan_of("gqa_1.5B", "parallel.pp=2", devices=2, nodes=2)
    assert plan.layout.ranks_per_node == 2
    assert plan.node_memory_bytes() == 2 * plan.memory[0].total > 2 * plan.memory[1].total


@pytest.mark.parametrize(
    ("name", "capacity_gb"), [("gqa_1.5B", 32), ("gqa_1.5B", 20), ("gqa_3B", 40), ("mqa_0.5B", 16), ("moe_0.5Bx8", 45)]
)
@pytest.mark.parametrize("shared", [False, True])
def test_every_named_remedy_helps(name: str, capacity_gb: float, shared: bool) -> None:
    message = refusal(plan_of(name), capacity_gb * 1e9, shared)
    remedies = message.split("what would help: ")[1].split("; ")
    assert "--smoke" in remedies
    for remedy in remedies:
        overrides = [argument for argument in remedy.split() if "=" in argument]
        check_fits(plan_of(name, *overrides, smoke=remedy == "--smoke"), int(capacity_gb * 1e9), shared)
    assert any("ranks" in remedy for remedy in remedies) is not shared


def test_expert_parallelism_is_suggested_where_it_helps() -> None:
    message = refusal(plan_of("moe_0.5Bx8"), 38e9, shared=False)
    assert (
        "; parallel.ep=4 parallel.dp=4 (4 ranks); parallel.tp=2 parallel.pp=1 parallel.dp=1 parallel.sp=true" in message
    )


def test_only_helpful_remedies_are_named() -> None:
    assert refusal(plan_of("gqa_3B"), 1e9, shared=True).endswith("what would help: --smoke")
    assert refusal(plan_of("gqa_3B", smoke=True), 1e8, shared=True).endswith(
        "nothing short of another model would help"
    )


def test_remedies_are_combined_where_none_suffices_alone() -> None:
    words = ("training.micro_batch_size=8", "training.global_batch_size=16")
    both = "training.micro_batch_size=1 training.recompute=full"
    capacity_bytes = plan_of("gqa_3B", *words, *both.split()).rank_memory_bytes()
    message = refusal(plan_of("gqa_3B", *words), capacity_bytes, shared=False)
    assert f"; {both};" in message
    assert "; training.recompute=full;" not in message
    # Not even these fit into half of it, but with more ranks they do.
    plan = plan_of("gqa_3B", *words)
    for text in refusal(plan, capacity_bytes / 6, shared=False).split("what would help: --smoke; ")[1].split("; "):
        overrides = [argument for argument in text.split() if "=" in argument]
        check_fits(plan_of("gqa_3B", *words, *overrides), int(capacity_bytes / 6), shared=False)


def test_another_grid_of_the_same_ranks_is_suggested() -> None:
    plan = plan_of("gqa_3B", devices=8)
    capacity_bytes = int(0.6 * plan.rank_memory_bytes())
    found = remedies(plan, capacity_bytes, same_ranks=True)
    assert found
    for text in found:
        other = plan_of("gqa_3B", *text.split(), devices=8)
        assert other.layout.world_size == 8
        check_fits(other, capacity_bytes, shared=False)
    assert any("parallel.pp=" in text for text in found)


def test_a_refusal_names_its_figures() -> None:
    message = refusal(plan_of("gqa_1.5B"), 16e9, shared=False)
    assert "gqa_1.5B does not fit: a rank needs about 37." in message
    assert "a device has 16.00 GB (largest rank: weights 3.09 GB, gradients 6.17 GB" in message


@pytest.fixture
def matrix_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rows]:
    """`matrix_table(*overrides)`: rows and notes of the whole matrix by their first word, on a narrow terminal."""
    monkeypatch.setenv("COLUMNS", "60")

    def table(*overrides: str) -> Rows:
        print_matrix(overrides, smoke=False)
        return {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}

    return table


def test_one_table_lists_all_runs(matrix_table: Callable[..., Rows]) -> None:
    rows = matrix_table()
    # Of transformers' models with the same shapes, and of the papers' formulas.
    assert rows["gqa_1.5B"][:6] == ["1,543,714,304", "1,543,714,304", "9,789,898,752", "1,024.5", "28,672", "0.0086"]
    assert rows["moe_0.5Bx8"][:2] == ["2,690,709,376", "807,991,168"]
    for run in load_matrix().runs:
        plan = plan_of(run.name)
        assert rows[run.name][-1] == f"{plan.rank_memory_bytes() / 1e9:.2f}"
        assert rows[run.name][1] == f"{plan.parameters.active:,}"


def test_the_table_flags_attention_that_reads_no_fewer_keys(matrix_table: Callable[..., Rows]) -> None:
    assert "NOT" in matrix_table()["nsa_1.5B:"]
    assert "nsa_1.5B:" not in matrix_table("training.seq_len=8192")


def test_the_table_names_runs_that_reject_an_override(matrix_table: Callable[..., Rows]) -> None:
    rows = matrix_table("parallel.cp=2")
    assert rows["gqa_1.5B"][8] == "2"
    assert "nsa_1.5B" not in rows
    assert rows["nsa_1.5B:"][0] == "parallel.cp:"
    with pytest.raises(ConfigError, match="training.dtype"):
        matrix_table("training.dtype=int8")
