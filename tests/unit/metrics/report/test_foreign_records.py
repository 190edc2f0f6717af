"""Records that another tool wrote: reported as far as they go, and refused by name where they do not fit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.metrics_parts import make_record, printed, read_csv
from support.repository import ROOT

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.compare import compare
from efficientbench.metrics.analysis.repeats import Group, combine, load_group
from efficientbench.metrics.records.record import NOT_RECORDED, read_record
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.comparison import print_comparison

DOCS = ROOT / "docs"


def example() -> dict[str, Any]:
    """The record that docs/measure-your-loop.md shows."""
    [text] = re.findall(r"^```json\n(.*?)^```", (DOCS / "measure-your-loop.md").read_text(), re.MULTILINE | re.DOTALL)
    return json.loads(text)


def written(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / content.get("run", "run") / "record.json"
    path.parent.mkdir()
    path.write_text(json.dumps(content))
    return path


def test_every_report_accepts_a_record_with_a_part_of_the_figures(tmp_path: Path) -> None:
    written(tmp_path, example())
    written(tmp_path, {**example(), "run": "other", "seed": 7, "started_at": "2026-01-02T03:04:05Z"})
    report = build_report(tmp_path, paper=True)
    assert report.warnings == []
    assert len(report.records) == 2
    row = read_csv(tmp_path / "report.csv")[0]
    assert float(row["al_s"]) == example()["al_s"]
    assert row["mfu"] == "n/a"
    reasons = row["unavailable"].split(" | ")
    assert f"mfu: {NOT_RECORDED}" in reasons
    # A reason of the record's own stands.
    [(name, reason)] = example()["unavailable"].items()
    assert f"{name}: {reason}" in reasons
    for page in ("report.html", "report.md"):
        assert NOT_RECORDED in (tmp_path / page).read_text()
    ours, other = (load_group(tmp_path / record.run) for record in report.records)
    text = printed(print_comparison, compare(ours, other), width=200)
    assert re.search(r"AL, s/step +0.52 +0.52 +1.000", text)
    assert NOT_RECORDED in " ".join(text.split())


@pytest.mark.parametrize(
    "odd",
    [
        {"al_s_drift_flagged": True},
        {"config": {"training": {"recompute": ["all"]}}},
        {"perplexity": 1e200, "validation_loss": 460.0},
        {"tokens_per_s": -3.0, "al_s": None, "unavailable": {"al_s": "lost", "energy_j_per_token": "not read"}},
    ],
)
def test_odd_values_do_not_break_a_report(odd: dict[str, Any], tmp_path: Path) -> None:
    first = read_record(written(tmp_path, {**example(), **odd}))
    written(tmp_path, {**example(), **odd, "run": "again", "seed": 7})
    build_report(tmp_path, paper=True)
    assert combine(Group((first, first.model_copy(update={"perplexity": 3e200})))).repeats == 2
    other = read_record(written(tmp_path, {**example(), "run": "other"}))
    comparison = compare(Group((first,)), Group((other,)), ["layout"])
    if "tokens_per_s" in odd:
        assert comparison.unavailable["tokens_per_s"] == "ours_1.5B: it is not above 0"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens_per_sec": 1.0}, "tokens_per_sec: Extra inputs are not permitted (did you mean tokens_per_s?)"),
        ({"mfu": None}, "absent without a reason in 'unavailable': mfu"),
        ({"seq_len": 0}, "seq_len: Input should be greater than or equal to 1"),
        ({"tokens": 2**70}, "tokens: Input should be less than 9223372036854775808"),
        ({"al_s": 1e308}, "larger than 1e+300: al_s"),
        ({"started_at": "yesterday"}, "started_at: 'yesterday' is no time in ISO 8601, such as 2026-01-02T03:04:05"),
        ({"step_time_percentiles_s": [0.1, 0.2]}, "step_time_percentiles_s: List should have at least 101 items"),
        (
            {"quality_curve": [{"step": 0, "tokens": 0, "loss": 3.0, "loss_se": None, "measured_tokens": 0,
                                "train_s": 0.0, "energy_j": None}]},
            "quality_curve.0.tokens: Input should be greater than or equal to 1",
        ),
        (
            {"timelines": [{"device": "0", "device_name": "x", "scope": "gpu", "bucket_s": 1.0, "time_s": [0.5, 1.5],
                            **{f"{name}_{kind}": [1.0] for name in ("memory_used_gb", "utilization", "power_w")
                               for kind in ("mean", "max")}}]},
            "timelines.0: a timeline needs a bucket_s above 0, and lists of one length",
        ),
        ({"experts": {"tokens_per_expert": [[]], "load_imbalance": []}}, "experts.tokens_per_expert.0: List should"),
    ],
)  # fmt: skip
def test_wrong_fields_of_a_foreign_record_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = written(tmp_path, {**example(), **changes})
    with pytest.raises(MetricsError, match=f"^{re.escape(f'{path}: not a run')}.*{re.escape(message)}"):
        read_record(path)


def test_the_schema_has_every_field_and_marks_required_ones(tmp_path: Path) -> None:
    schema = json.loads((DOCS / "record.schema.json").read_text())
    assert schema["properties"].keys() == make_record().model_dump().keys()
    assert (schema["properties"]["al_s"]["unit"], schema["properties"]["al_s"]["better"]) == ("s", "lower")
    assert set(schema["required"]) <= example().keys() <= schema["properties"].keys()
    for place, name in enumerate(schema["required"]):
        path = tmp_path / str(place) / "record.json"
        path.parent.mkdir()
        path.write_text(json.dumps({key: value for key, value in example().items() if key != name}))
        with pytest.raises(MetricsError, match=f"{name}: Field required"):
            read_record(path)
