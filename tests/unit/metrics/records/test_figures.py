"""One row of the table of figures is all that a new figure takes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.metrics_parts import read_csv
from support.repository import ROOT

from efficientbench.metrics.records.figures import Metrics

ROW = """
    tokens_per_kj: float | None = figure(
        "tokens/kJ",
        "tokens trained on for 1,000 J",
        lambda m: 1e3 * m.run.tokens / m.measured("energy_j"),
        better="higher",
        compared="tokens for a kJ",
        headline=Headline(13, "tok/kJ", "{:,.1f}".format, "Tokens for a kilojoule"),
    )
"""
MEASURE_AND_REPORT = """
import sys
from pathlib import Path

import generate
from rich.console import Console
from support.metrics_parts import GB, HandClock, TraceSensor, make_record, measure_steps

from efficientbench.metrics.analysis.compare import compare
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.records.facts import Quality, RunFacts
from efficientbench.metrics.records.record import write_record
from efficientbench.metrics.records.summarize import summarize
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.comparison import print_comparison
from efficientbench.metrics.report.headline import print_results

folder, clock = Path(sys.argv[1]), HandClock(0)
sensor = TraceSensor(clock, ("A", "B"), power=lambda t: 200.0)
run = measure_steps(clock, sensor, times_s=(1, 2, 3, 4), readings=32)
summary = summarize(run, RunFacts(1000, 1000, 2, 6e3, 7e3, 8e3, None, "not part of this test"), Quality())
values = {**summary.values, "devices": 2, "unavailable": summary.unavailable}
write_record(make_record(values), folder / "a" / "record.json")
report = build_report(folder)
print_results(report.records, Console(width=400))
print_comparison(compare(*[Group((record,)) for record in report.records * 2]), Console(width=400))
(folder / "columns").write_text(generate.columns())
(folder / "schema").write_text(generate.schema_of(generate.RunRecord))
"""


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run that was measured and reported by this tree with one more row, and what the terminal had."""
    package, folder = tmp_path_factory.mktemp("tree") / "efficientbench", tmp_path_factory.mktemp("runs")
    package.mkdir()
    for part in (ROOT / "efficientbench").iterdir():
        if part.name == "metrics":
            shutil.copytree(part, package / part.name)
        else:
            (package / part.name).symlink_to(part.resolve())
    table = package / "metrics" / "records" / "figures.py"
    table.write_text(table.read_text(encoding="utf-8") + ROW, encoding="utf-8")
    path = os.pathsep.join(map(str, (package.parent, ROOT / "tests", ROOT / "docs")))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE_AND_REPORT, str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_a_row_is_a_field_of_the_record_and_of_its_schema(reported: tuple[Path, str]) -> None:
    folder, _ = reported
    record = json.loads((folder / "a" / "record.json").read_text())
    # 400 tokens for two devices of 200 W in 10 s.
    assert record["tokens_per_kj"] == pytest.approx(100)
    field = json.loads((folder / "schema").read_text())["properties"]["tokens_per_kj"]
    assert (field["unit"], field["better"]) == ("tokens/kJ", "higher")


def test_a_row_is_a_column_behind_the_published_ones(reported: tuple[Path, str]) -> None:
    folder, _ = reported
    [row] = read_csv(folder / "report.csv")
    assert float(row["tokens_per_kj"]) == pytest.approx(100)
    assert list(row).index("tokens_per_kj") == list(row).index(list(Metrics.model_fields)[-1]) + 1
    page = (folder / "columns").read_text()
    assert "| `tokens_per_kj` | tokens/kJ | tokens trained on for 1,000 J | higher |  |" in page.splitlines()


def test_a_row_is_in_terminal_markdown_and_page(reported: tuple[Path, str]) -> None:
    folder, terminal = reported
    [header, values] = [line.split() for line in terminal.splitlines() if line.startswith(("run ", "gqa_1.5B "))]
    assert (header[-1], values[-1]) == ("tok/kJ", "100.0")
    assert "| bits/byte | tok/kJ |" in (folder / "report.md").read_text()
    assert re.search("^tokens for a kJ +100 +100 +1.000 ", terminal, re.MULTILINE)
    page = (folder / "report.html").read_text()
    for text in (
        'title="tokens_per_kj: tokens trained on for 1,000 J (tokens/kJ); higher is better"',
        "<figcaption>Tokens for a kilojoule</figcaption>",
        '<td class="word">tokens trained on for 1,000 J</td><td class="word">higher</td>',
    ):
        assert text in page


def test_a_row_is_in_tensorboard(reported: tuple[Path, str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(reported[0] / "hparams" / "gqa_1.5B")).Reload()
    assert [event.value for event in events.Scalars("tokens_per_kj")] == pytest.approx([100])
