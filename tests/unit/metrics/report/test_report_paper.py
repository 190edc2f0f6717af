"""The paper's layout, where its ranking by mean power misleads, and the table of failed runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.metrics_parts import make_record, printed, read_csv
from support.synthetic_runs import matrix_runs

from efficientbench.metrics.records.record import RECORD_NAME, RunRecord, write_record
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.paper.paper import (
    AGREE,
    NO_ENERGY,
    NO_VERDICT,
    TIES,
    disagreements,
    paper_markdown,
    paper_tables,
    print_paper,
    rank,
)
from efficientbench.metrics.report.sections.failures import FailedRun, failures_table, load_failures, print_failures

TOKENS_PER_STEP = 4096


def cell(variant: str, power_w: float, step_s: float, interval: float = 0.01, **more: Any) -> RunRecord:
    """A run by its power and step time, as in a cell of the paper's tables."""
    return make_record(
        {
            **{"run": f"{variant}_1.5B", "variant": variant, "aec_w": power_w, "al_s": step_s, "energy_scope": "gpu"},
            **{"al_s_ci_low": step_s * (1 - interval), "al_s_ci_high": step_s * (1 + interval)},
            **{"energy_j_per_token": power_w * step_s / TOKENS_PER_STEP, "repeats": 3},
            **more,
        }
    )


def test_energy_reverses_the_papers_ranking_by_mean_power() -> None:
    # Table 3 at 1.5B: NSA 598 W and 0.5962 s a step, GQA 652.7 W and 0.1283 s.
    nsa, gqa = cell("nsa", 598.0, 0.5962), cell("gqa", 652.7, 0.1283)
    ranked = {item.record.variant: (item.by_token, item.by_power) for item in rank([nsa, gqa])}
    assert ranked == {"gqa": (1, 2), "nsa": (2, 1)}
    [sentence] = disagreements([nsa, gqa])
    assert "AEC ranks nsa_1.5B × 3 (598 W) ahead of gqa_1.5B × 3 (653 W)" in sentence
    ratio = 598.0 * 0.5962 / (652.7 * 0.1283)
    assert f"a token costs it {ratio:.2f} times as much energy" in sentence


def test_runs_within_step_noise_share_a_rank_and_do_not_disagree() -> None:
    runs = [cell("gqa", 600.0, 0.100, interval=0.02), cell("mqa", 598.0, 0.101, interval=0.02)]
    assert disagreements(runs) == []
    assert [run.tied_by_token for run in rank(runs)] == [False, True]
    [table] = paper_tables(runs)
    assert table.notes[0] == AGREE
    assert [row[-2:] for row in table.rows] == [("≈ 2", "1"), ("1", "≈ 2")]


def test_the_table_has_the_papers_columns_plus_pcu_and_energy() -> None:
    tables = {table.title: table for table in paper_tables(matrix_runs())}
    attention = tables["Attention mechanisms"]
    assert attention.header[:10] == (
        *("Method", "Parameters", "Micro Batch Size", "PPL", "AMU (GB)", "PCU", "AL (s/iter)", "TT (Tokens/param/s)"),
        *("AEC (W)", "GPU Hours"),
    )
    assert [row[0].partition(" (")[0] for row in attention.rows] == ["MQA", "GQA", "MLA", "NSA"] * 3
    assert [row[1] for row in attention.rows[::4]] == ["0.5B", "1.5B", "3B"]
    positions = tables["Positional encodings"]
    methods = ["RoPE", "Absolute", "Learnable Absolute", "Relate", "None"]
    assert (positions.header[2], [row[0] for row in positions.rows]) == ("Context Length", methods)
    moe = tables["Mixture of experts"]
    assert {(row[0], row[1], row[2]) for row in moe.rows} >= {("MoE Model", "0.5B×8", "2"), ("Dense Model", "3B", "–")}


def test_a_smoke_model_is_named_with_its_own_parameters() -> None:
    [table] = paper_tables([cell("gqa", 600.0, 0.1, smoke=True, size="0.5Bx8", parameters=1_048_112)])
    assert table.rows[0][1] == "1.05M (smoke of 0.5B×8)"


@pytest.mark.parametrize("variant", ["gqa", "my_own"])
def test_runs_without_energy_are_listed_but_not_ranked(variant: str) -> None:
    [table] = paper_tables([make_record({"variant": variant, "perplexity": 8.09})])
    assert (table.rows[0][3], table.rows[0][-3:], table.notes) == ("8.09", ("n/a",) * 3, (NO_ENERGY,))


def test_the_papers_table_is_printed_in_full_and_written_as_markdown() -> None:
    text = printed(print_paper, matrix_runs(), width=90)
    assert "AEC ranks nsa_1.5B" in " ".join(text.split())
    assert "…" not in text
    assert r"gqa\|&lt;b&gt;" in paper_markdown([cell("gqa|<b>", 600.0, 0.1)])


def test_only_comparable_runs_are_ranked_together() -> None:
    longer = cell("nsa", 598.0, 0.5962, seq_len=8192)
    failed = cell("mla", 100.0, 0.5, status="failed")
    [table] = paper_tables([cell("gqa", 652.7, 0.1283), longer, failed])
    ranks = {row[0]: row[-2:] for row in table.rows}
    assert ranks == {"GQA × 3": ("1", "1"), "NSA × 3": ("1", "1"), "MLA × 3 (failed)": ("n/a", "n/a")}
    assert table.notes == (AGREE,)


def test_runs_with_unknown_noise_are_not_ranked_apart() -> None:
    unknown = {"al_s_ci_low": None, "al_s_ci_high": None}
    runs = [cell("gqa", 652.7, 0.1, **unknown), cell("nsa", 598.0, 0.5, **unknown)]
    assert disagreements(runs) == []
    assert [item.tied_by_token for item in rank(runs)] == [False, True]


def test_single_runs_are_ranked_without_a_verdict() -> None:
    runs = [cell("gqa", 652.7, 0.1283, repeats=1), cell("nsa", 598.0, 0.5962, repeats=1)]
    [table] = paper_tables(runs)
    assert [row[-2:] for row in table.rows] == [("1", "≈ 2"), ("≈ 2", "1")]
    assert table.notes[0].startswith("AEC ranks nsa_1.5B (598 W) ahead of gqa_1.5B (653 W)")
    assert table.notes[1:] == (NO_VERDICT, TIES)
    assert NO_VERDICT in paper_tables([cell("gqa", 600.0, 0.1), cell("mqa", 598.0, 0.1, repeats=2)])[0].notes
    assert AGREE not in paper_tables([cell("gqa", 600.0, 0.1), cell("mqa", 500.0, 0.1, repeats=2)])[0].notes


def test_failures_are_rows_with_their_reasons(tmp_path: Path) -> None:
    write_record(make_record({}), tmp_path / "gqa_1.5B" / RECORD_NAME)
    reason = "loss is <nan> | after\nthe step"
    for folder, content in (
        ("mqa_3B", json.dumps({"kind": "non_finite", "rank": 1, "step": 7, "reason": reason, "checkpoint": None})),
        ("mla_3B", json.dumps({"kind": "time_limit", "rank": None, "step": None, "reason": "too long"})),
        ("mqa_3B/previous/20260101", json.dumps({"kind": "crash", "reason": "long ago"})),
        ("nsa_3B", "{"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "failure.json").write_text(content, encoding="utf-8")
    late = FailedRun("mla_3B", "time_limit", None, "too long")
    assert load_failures(tmp_path)[0] == [late, FailedRun("mqa_3B", "non_finite", 7, f"rank 1: {reason}")]
    assert build_report(tmp_path).failures == load_failures(tmp_path)[0]
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| mqa_3B | non finite | 7 | rank 1: loss is &lt;nan&gt; \\| after the step |" in text
    assert "| mla_3B | time limit | n/a | too long |" in text
    assert "rank 1: loss is &lt;nan&gt; | after the step" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "rank 1: loss is <nan> | after the step" in printed(print_failures, load_failures(tmp_path)[0], width=100)
    table = failures_table([late, FailedRun("mqa_3B", "mistake", None, "too long"), replace(late, folder="nsa_3B")])
    assert [row[0] for row in table.rows] == ["mla_3B, nsa_3B", "mqa_3B"]


def test_a_smaller_micro_batch_is_noted(tmp_path: Path) -> None:
    record = make_record({"micro_batch_size": 1, "config": {"training": {"micro_batch_size_asked": 4}}})
    write_record(record, tmp_path / RECORD_NAME)
    build_report(tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert re.search(r"\(micro-batch 1 for 4\)(.|\n)*memory did not suffice", text)
    (row,) = read_csv(tmp_path / "report.csv")
    assert (row["micro_batch_size"], row["micro_batch_size_asked"]) == ("1", "4")
