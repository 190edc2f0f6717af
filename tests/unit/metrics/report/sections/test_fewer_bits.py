"""Weights of fewer bits in reports and in `compare`: cost, quality and compression beside the full width."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.generated import generation, phase, row
from support.metrics_parts import make_record
from typer.testing import CliRunner

from efficientbench.basics.errors import MetricsError
from efficientbench.cli.app import app
from efficientbench.metrics.analysis.fewer_bits import load_widths
from efficientbench.metrics.records.evaluation import write_evaluation
from efficientbench.metrics.records.generation.generation import GenerationRecord, write_generation
from efficientbench.metrics.records.record import write_record
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.sections.fewer_bits import bits_tables

GPU = "NVIDIA H100 80GB HBM3"
TIMES_S = {"none": (0.050, 0.051, 0.052), "int4_g128": (0.060, 0.0606, 0.0611), "int8": (0.040, 0.0404, 0.0409)}
JOULES = {"none": (3.0, 3.1, 2.9), "int8": (3.02, 2.94, 3.08), "int4_g128": (2.0, 2.02, 2.05)}
DISK_BYTES = {"none": 1_000_000_000, "int8": 550_000_000, "int4_g128": 300_000_000}


def measured(width: str, repeat: int, variant: str = "gqa") -> GenerationRecord:
    decode = phase(TIMES_S[width][repeat], 8, JOULES[width][repeat])
    rows = [row(variant, 128, 8, decode=decode)]
    disk_bytes = DISK_BYTES[width]
    return generation(variant, seed=repeat, quantization=width, disk_bytes=disk_bytes, rows=rows)


def evaluated(folder: Path, losses: Sequence[float], rights: Sequence[bool]) -> None:
    """Write the items of two tasks; documents have 10 tokens and 40 bytes."""
    documents = [
        {"item": f"document/{n}", "prompt_sha256": str(n), "tokens": 10, "utf8_bytes": 40, "loss_sum": 10 * loss}
        for n, loss in enumerate(losses)
    ]
    answers = [{"item": f"q/{n}", "prompt_sha256": str(n), "right": right} for n, right in enumerate(rights)]
    (folder / "evaluation").mkdir(parents=True)
    for task, items in (("loss", documents), ("mmlu", answers)):
        lines = [{"format": 1, "task": task}, *items]
        (folder / "evaluation" / f"{task}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def trained(variant: str, folder: Path, seed: int = 0) -> None:
    names = {"run": f"{variant}_1.5B", "variant": variant, "size": "1.5B", "seed": seed, "device_name": GPU}
    figures = {"tokens_per_s": 1000.0, "tokens_trained": 3_600_000, "tokens": 1_800_000, "duration_s": 7200.0}
    energy = {"energy_j_per_token": 2.0, "energy_scope": "gpu"}
    write_record(make_record({**names, **figures, **energy}), folder / "record.json")


def with_widths(folder: Path, repeats: int) -> None:
    """A run's repeats, measured in three widths; the first one is evaluated in two."""
    for repeat in range(repeats):
        seed = folder / f"seed_{repeat}"
        trained("gqa", seed, repeat)
        for width in TIMES_S:
            place = seed if width == "none" else seed / "quantized" / width
            write_generation(measured(width, repeat), place / "generation.json")
    evaluated(folder / "seed_0", [2.0, 2.1, 1.9, 2.0], [True] * 80 + [False] * 20)
    evaluated(folder / "seed_0" / "quantized" / "int8", [2.2, 2.3, 2.1, 2.2], [True] * 60 + [False] * 40)


def test_costs_of_widths_have_verdicts_over_their_repeats(tmp_path: Path) -> None:
    with_widths(tmp_path / "gqa_1.5B", 3)
    costs, _ = bits_tables(load_widths(tmp_path))
    assert [line[:2] for line in costs.rows] == [("gqa_1.5B", width) for width in TIMES_S]
    assert [line[5] for line in costs.rows] == ["1,000.0", "300.0", "550.0"]
    read = row("gqa", 128, 8).bytes_read
    assert read is not None
    assert {line[6] for line in costs.rows} == {f"{read / 8 / 1e6:,.1f}"}
    full, int4, int8 = (line[-2:] for line in costs.rows)
    assert full == ("", "")
    assert int8[0].startswith("faster: 2")
    assert int8[0].endswith("% less")
    assert int8[1] == "not cheaper here: no difference measurable"
    assert int4[0].startswith("not faster here: 1")
    assert int4[0].endswith("% more")
    assert int4[1].startswith("cheaper: 3")


def test_single_measurements_have_no_verdict_and_a_lone_width_says_why(tmp_path: Path) -> None:
    with_widths(tmp_path / "gqa_1.5B", 1)
    write_generation(measured("int8", 0, "mqa"), tmp_path / "mqa_1.5B" / "quantized" / "int8" / "generation.json")
    costs, _ = bits_tables(load_widths(tmp_path))
    cells = {line[:2]: line[-2] for line in costs.rows}
    assert cells["gqa_1.5B", "int8"] == "no verdict: 1 and 1 runs; by the figures 20.0% less"
    assert cells["mqa_1.5B", "int8"] == "n/a"
    notes = " ".join(costs.notes)
    assert "n/a verdict of mqa_1.5B int8: no combination of prompt, batch and new tokens was measured of both" in notes
    assert "3 repeats of each width show it" in notes


def test_qualities_are_paired_by_item_with_the_share_kept_and_the_compression_rate(tmp_path: Path) -> None:
    with_widths(tmp_path / "gqa_1.5B", 1)
    [quality] = load_widths(tmp_path).qualities
    _, table = bits_tables(load_widths(tmp_path))
    nats, bits, mmlu = table.rows
    run = str(Path("gqa_1.5B", "seed_0"))
    assert [line[:3] for line in table.rows] == [
        (run, "int8", "loss, nats per token"),
        (run, "int8", "loss, bits per byte"),
        (run, "int8", "mmlu"),
    ]
    per_byte = [loss * 10 / 40 / math.log(2) for loss in (2.0, 2.2)]
    assert bits[4:6] == tuple(f"{each:.4f}" for each in per_byte)
    assert nats[-2:] == bits[-2:] == (f"{2.0 / 2.2:.1%}", f"{1000 / 550 * 2.0 / 2.2:.3f}")
    assert mmlu[-2:] == ("75.0%", f"{1000 / 550 * 0.75:.3f}")
    assert mmlu[-3] == "checkpoints differ"
    assert quality.evaluations.paired[2].first == 0.8


def test_core_itself_has_the_share_kept_and_the_compression_rate(tmp_path: Path) -> None:
    with_widths(tmp_path / "gqa_1.5B", 1)
    full = tmp_path / "gqa_1.5B" / "seed_0"
    for folder, share in ((full, 0.75), (full / "quantized" / "int8", 0.625)):
        rights = [n < 100 * share for n in range(100)]
        items = [{"item": f"copa/{n}", "prompt_sha256": str(n), "right": right} for n, right in enumerate(rights)]
        lines = "".join(json.dumps(line) + "\n" for line in ({"format": 1, "task": "core"}, *items))
        (folder / "evaluation" / "core.jsonl").write_text(lines)
        summary = {"figures": {"core": 2 * share - 1}, "parts": {"copa": {"baseline": 0.5}}}
        write_evaluation(summary, folder / "evaluation" / "core.json")
    _, table = bits_tables(load_widths(tmp_path))
    [core] = [line for line in table.rows if line[2] == "core"]
    # 62.5 % of 100 items are 63.
    assert core[4:6] == ("0.5000", "0.2600")
    assert core[-2:] == ("52.0%", f"{1000 / 550 * 0.52:.3f}")


def test_a_report_has_the_section_and_no_rate_without_sizes(tmp_path: Path) -> None:
    with_widths(tmp_path / "gqa_1.5B", 1)
    (tmp_path / "gqa_1.5B" / "seed_0" / "generation.json").unlink()
    (tmp_path / "gqa_1.5B" / "seed_0" / "quantized" / "int4_g128" / "evaluation").mkdir()
    build_report(tmp_path)
    markdown, page = ((tmp_path / f"report.{kind}").read_text() for kind in ("md", "html"))
    assert "## Fewer bits" in markdown
    assert "int8: generate --measure counts the bytes of both widths" in markdown
    assert 'id="bits"' in page
    assert "What quality they keep" in page
    (tmp_path / "gqa_1.5B" / "seed_0" / "evaluation" / "mmlu.jsonl").write_text("{}\nno JSON\n")
    report = build_report(tmp_path)
    assert any("mmlu.jsonl, line 2" in message for message in report.damaged)
    assert [table.title for table in bits_tables(report.widths)] == ["What they cost here"]


def test_lives_are_compared_in_the_widths_that_are_asked_for(tmp_path: Path) -> None:
    for variant in ("gqa", "mqa"):
        trained(variant, tmp_path / variant)
        write_generation(measured("none", 0, variant), tmp_path / variant / "generation.json")
    rounded = tmp_path / "mqa" / "quantized" / "int4_g128"
    write_generation(measured("int4_g128", 0, "mqa"), rounded / "generation.json")
    evaluated(tmp_path / "gqa", [2.0, 2.1, 1.9, 2.0], [True] * 5)
    evaluated(rounded, [2.2, 2.3, 2.1, 2.2], [True] * 5)
    words = ["compare", str(tmp_path / "gqa"), str(tmp_path / "mqa"), "--served-tokens", "1e9"]

    def said(*further: str) -> str:
        done = CliRunner().invoke(app, [*words, *further], env={"COLUMNS": "200"}, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return " ".join(done.output.split())

    full, mixed = said(), said("--weights", "none,int4_g128")
    assert "Weights:" not in full
    assert "loss, nats per token" not in full
    assert "Weights: none against int4_g128." in mixed
    assert "2.0000 2.2000 +0.2000" in mixed
    assert "and int4_g128 serves: evaluations have its own" in mixed
    # A row has A, its interval, B and its interval.
    (one, _, other), (same, _, rounded_one) = (text.split("serving, J ")[1].split()[:3] for text in (full, mixed))
    assert one == same == other != rounded_one
    with pytest.raises(MetricsError, match=r"--weights: nothing of .*mqa.* with 'int4': did you mean int4_g128\?"):
        said("--weights", "none,int4")
    assert CliRunner().invoke(app, [*words, "--weights", "a,b,c"]).exit_code == 2


def test_a_repeats_own_folder_and_names_that_begin_as_repeats_are_runs(tmp_path: Path) -> None:
    for name in ("seed_0", "seed_coder", "seed_math"):
        for folder, width in ((tmp_path / name, "none"), (tmp_path / name / "quantized" / "int8", "int8")):
            folder.mkdir(parents=True)
            write_generation(measured(width, 0), folder / "generation.json")
    assert {cost.run for cost in load_widths(tmp_path / "seed_0").costs} == {"."}
    assert {cost.run for cost in load_widths(tmp_path).costs} == {".", "seed_coder", "seed_math"}
