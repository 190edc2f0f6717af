"""The suite of models whose layers are of several kinds: its runs cost what gqa does, and show their windows."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from support.metrics_parts import make_record
from support.printed import on_one_line

from efficientbench.config.load import resolve
from efficientbench.config.matrix import HYBRIDS, RunName, load_matrix
from efficientbench.costs.model import cache_bytes, count_parameters
from efficientbench.metrics.report.columns import runs_csv
from efficientbench.metrics.report.sections.environments import settings_table
from efficientbench.planning.plan import hidden, plan_anywhere
from efficientbench.planning.plan_table import print_plan
from efficientbench.sweep.selection import select

RUNS = [run for run in load_matrix().all_runs if run.suite == "hybrids"]


def test_hybrids_are_a_suite_beside_the_matrix() -> None:
    matrix = load_matrix()
    assert {run.name for run in RUNS} == {run.name for run in load_matrix(HYBRIDS).runs}
    assert not {run.variant for run in matrix.runs} & ({run.variant for run in RUNS} - {"gqa", "moe"})
    # The baseline is one run in both suites: its name means one configuration, and a sweep trains it once.
    assert matrix.run("gqa_1.5B").suite == "attention_variants"
    both = [run.name for run in select(matrix, ("attention", "hybrids"))]
    assert len(both) == len(set(both))
    assert {run.name for run in RUNS} <= set(both)
    assert {run.variant for run in select(matrix, ("attention_free",))} == {"gqa", "gdn", "mamba2"}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_hybrid_has_the_parameters_of_its_baseline_and_shows_its_windows(run: RunName) -> None:
    experts = run.variant.startswith("moe")
    config, baseline = resolve(run.name), resolve(f"{'moe' if experts else 'gqa'}_{run.size}")
    counted, wanted = (count_parameters(each.model) for each in (config, baseline))
    assert abs(counted.total / wanted.total - 1) < 0.003
    assert abs(counted.active / wanted.active - 1) < 0.003
    # An expert is an eighth of the size's width.
    assert config.model.ffn_hidden_size % (32 if experts else 64) == 0
    assert config.training == baseline.training
    for each in (config, resolve(run.name, smoke=True)):
        assert hidden(each) is None
    smoke, full = (tuple(resolve(run.name, smoke=smoke).model.pattern or ()) for smoke in (True, False))
    assert smoke == full


def test_fine_experts_are_an_eighth_as_wide_in_every_size() -> None:
    for size in load_matrix().sizes:
        width = resolve(f"moe_{size}").model.ffn_hidden_size
        assert {resolve(f"{name}_{size}").model.ffn_hidden_size for name in ("moe_fine", "moe_fine_shared")} == {
            width // 8
        }


def test_a_plan_sums_over_layers_of_both_kinds() -> None:
    """By hand: 12 heads, 2 groups, head dimension 128; of 28 layers 7 are full and 21 see 1,024 of 2,048 tokens."""
    plan = plan_anywhere(resolve("swa_3to1_1.5B"))
    projections = 1536 * (12 + 2 * 2) * 128 + 1536 * 1536
    layer, logits = 2 * (projections + 3 * 1536 * 8960), 2 * 1536 * 151_936
    keys = 1024 - 1024 * 1023 / 2 / 2048
    assert plan.flops.forward == 28 * layer + logits + 7 * 4 * 1536 * 2048 / 2 + 21 * 4 * 1536 * keys
    # Inputs and outputs of norms, QKV, rotated, output; a window keeps values and output in another order too.
    full = 4 * 1536 + (16 + 14 + 12) * 128 + 3 * 8960
    assert plan.memory[0].activations == 2 * 2048 * 2 * (7 * full + 21 * (full + 14 * 128) + 2 * 1536)
    text = on_one_line(print_plan, plan)
    per_layer = projections + 16 * 128 + 3 * 1536 * 8960 + 2 * 1536
    for figure in ("21 swa, 7 own", f"swa {21 * per_layer:,}, own {7 * per_layer:,}", "37, 81, 257, 962 MB"):
        assert figure in text
    assert "state a token adds" in text
    assert "7,168 B, beside 22,020,096 B that are constant" in text
    assert "KV cache per token" not in text
    assert "slowest stage" not in text
    # Seven stages of one pattern each; the last has the logits as well.
    stages = (logits + 4 * layer + 2 * 1536 * 2048 + 3 * 4 * 1536 * keys) * 7 / plan.flops.forward
    text = on_one_line(print_plan, plan_anywhere(resolve("swa_3to1_1.5B", overrides=["parallel.pp=7"])))
    assert "slowest stage ÷ mean" in text
    assert f"{stages:.3f}, in FLOPs" in text


@pytest.mark.parametrize(
    ("words", "megabytes"),
    [
        ((), (59, 235, 940, 3758)),
        (("model.pattern=[swa,swa,swa,own]", "model.kinds.swa.attention.window=4096"), (59, 147, 323, 1028)),
        (("model.pattern=[swa,swa,swa,swa,swa,own]", "model.kinds.swa.attention.window=1024"), (34, 59, 159, 562)),
    ],
)
def test_the_state_of_a_sequence_is_that_of_its_windows(words: tuple[str, ...], megabytes: tuple[int, ...]) -> None:
    model = resolve("gqa_1.5B", overrides=words).model
    found = [round(cache_bytes(model, tokens, "bf16") / 1e6) for tokens in (2048, 8192, 32_768, 131_072)]
    assert tuple(found) == megabytes


def test_a_matrix_of_ones_own_keeps_its_meaning_of_a_hybrids_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("variants: {swa_3to1: {model: {attention: {query_groups: 1}}}}\nsuites: {}\n")
    assert resolve("swa_3to1_0.5B", smoke=True, matrix_file=path).model.pattern is None
    path.write_text("suites: {mine: [{variants: [swa_3to1], sizes: [0.5B]}]}\n")
    assert resolve("swa_3to1_0.5B", smoke=True, matrix_file=path) == resolve("swa_3to1_0.5B", smoke=True)


def test_a_report_shows_kinds_and_states_of_layers() -> None:
    configs = {name: resolve(name).model_dump(mode="json") for name in ("gqa_1.5B", "swa_3to1_1.5B")}
    records = [make_record({"run": name, "dtype": "bf16", "config": config}) for name, config in configs.items()]
    rows = list(csv.DictReader(io.StringIO(runs_csv(records))))
    assert [row["layer_kinds"] for row in rows] == ["", "21 swa, 7 own"]
    assert [row["state_bytes_32k"] for row in rows] == ["939524096", "256901120"]
    assert [row["kv_cache_bytes_per_token"] for row in rows] == ["28672", "7168"]
    table = settings_table(records)
    assert [row[-2:] for row in table.rows] == [("alike", "939,524,096"), ("21 swa, 7 own", "256,901,120")]
    assert "layers" not in settings_table(records[:1]).header


def test_a_kind_of_layers_that_does_not_show_is_named_as_it_is_written() -> None:
    keys = ["model.pattern=[local,own]", "model.kinds.local.attention.window=64", "training.seq_len=64"]
    said = hidden(resolve("gqa_0.5B", True, keys))
    assert said is not None
    assert said.startswith("attention 'local' does not show in this run: ")


def test_sequences_without_a_choice_of_blocks_do_not_show_nsa() -> None:
    assert hidden(resolve("nsa_0.5B")) is None
    assert hidden(resolve("nsa_0.5B", smoke=True)) is None
    assert "4 blocks of 16 tokens hold all 64" in (hidden(resolve("nsa_0.5B", True, ["training.seq_len=64"])) or "")
