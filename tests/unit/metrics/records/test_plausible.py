"""Records that cannot be true are left out by name and reason, and the report stands."""

from __future__ import annotations

import json
import re
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from support.metrics_parts import make_record

from efficientbench.basics.checksum import KEY, with_checksum
from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.repeats import load_group
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.records.plausible import read_plausible
from efficientbench.metrics.records.record import read_record, write_record
from efficientbench.metrics.records.sinks.steplog import StepLog
from efficientbench.metrics.report.build import build_report

TRUE = {
    "steps_measured": 10,
    "tokens": 10_240,
    "al_s": 0.5,
    "al_s_ci_low": 0.48,
    "al_s_ci_high": 0.52,
    "tokens_per_s": 2048.0,
    "pcu": 1.0,
    "mfu": 0.4,
    "energy_j": 500.0,
    "energy_j_per_step": 50.0,
    "energy_j_per_token": 500 / 10_240,
}
NOW = datetime.now(timezone.utc)


def later(**time: float) -> str:
    return (NOW + timedelta(**time)).isoformat()


@pytest.mark.parametrize(
    ("false", "reason"),
    [
        ({"pcu": 1.2}, "pcu is 1.2, and a fraction lies between 0 and 1"),
        ({"mfu": -0.1}, "mfu is -0.1, and a fraction lies"),
        ({"al_s_ci_low": 0.51}, "al_s is 0.5, outside its own interval, 0.51 to 0.52"),
        ({"tokens_per_s": 4096.0}, "tokens is 10240, and tokens_per_s × al_s × steps_measured 20480"),
        ({"energy_j": 250.0}, "energy_j is 250, and energy_j_per_step × steps_measured 500; energy_j is 250, and"),
        ({"devices": 8, "dp": 4}, "it has 8 devices, and 4 ranks"),
        ({"started_at": later(days=1.1)}, "which is in the future"),
        ({"formula_id": f"{FORMULAS}9"}, f"formula_id is {FORMULAS}9, and the known editions are "),
    ],
)
def test_what_cannot_be_true_is_left_out_and_the_rest_is_reported(
    false: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    write_record(make_record(TRUE), tmp_path / "true" / "record.json")
    write_record(make_record({**TRUE, "run": "false", "seed": 2, **false}), tmp_path / "false" / "record.json")
    report = build_report(tmp_path)
    assert [record.run for record in report.records] == ["gqa_1.5B"]
    [line] = report.damaged
    assert re.match(re.escape(f"{tmp_path}/false/record.json: cannot be true: ") + ".*" + re.escape(reason), line)
    assert line in report.warnings
    assert "false/record.json: cannot be true" in (tmp_path / "report.md").read_text()
    with pytest.raises(MetricsError, match="cannot be true"):
        load_group(tmp_path / "false")


@pytest.mark.parametrize(
    "odd",
    [
        {"started_at": later(hours=23)},
        {"started_at": later(hours=23).split("+")[0]},
        {"formula_id": "our-tool/1"},
        {"formula_id": FORMULAS.rpartition("/")[0] + "/1"},
        {"tokens_per_s": 2050.0, "energy_j_per_token": 0.0488},
        {"al_s": None, "al_s_ci_low": None, "al_s_ci_high": None},
        {"mfu_of_measured_peak": 1.04, "mfu_full_square": 1.3},
    ],
)
def test_what_may_be_true_stays(odd: dict[str, Any], tmp_path: Path) -> None:
    write_record(make_record({**TRUE, **odd}), tmp_path / "record.json")
    assert read_plausible(tmp_path / "record.json").run == "gqa_1.5B"


def written(folder: Path, step_time_s: float = 0.5, tokens: int = 1024, **values: Any) -> Path:
    """Write a run of two warm-up steps and ten measured ones; return the record's path."""
    with closing(StepLog(folder / "steps.jsonl")) as log:
        for step in range(1, 13):
            line = {"step": step, "measured": step > 2, "tokens": tokens, "step_time_s": step_time_s}
            log.write("step", line)
    write_record(make_record({**TRUE, **values}), folder / "record.json")
    return folder / "record.json"


def without_checksums(path: Path) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({name: content[name] for name in content if name not in (KEY, "steps_sha256")}))


def test_the_checksum_covers_the_steps(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert read_plausible(path).steps_sha256
    steps = tmp_path / "steps.jsonl"
    steps.write_text(steps.read_text().replace('"measured": false', '"measured": 0', 1))
    with pytest.raises(MetricsError, match="record.json: cannot be true: steps.jsonl beside it was changed"):
        read_plausible(path)
    # Writing the record again, as an evaluation does, does not vouch for other steps.
    write_record(read_record(path), path)
    with pytest.raises(MetricsError, match="steps.jsonl beside it was changed"):
        read_plausible(path)
    without_checksums(path)
    assert read_plausible(path).steps_sha256 is None
    steps.unlink()
    assert read_plausible(path)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ({"step_time_s": 0.55}, "a step took 0.5 s, and by steps.jsonl 0.55 s"),
        ({"tokens": 1000}, "tokens is 10,240, and that of steps.jsonl 10,000"),
        ({"resumed_after_steps": [3]}, "steps_measured is 10, and that of steps.jsonl 9"),
    ],
)
def test_what_follows_from_the_steps_is_computed_again(steps: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = written(tmp_path, **steps)
    with pytest.raises(MetricsError, match=re.escape(reason)):
        read_plausible(path)


def test_a_changed_record_with_a_new_checksum_is_found(tmp_path: Path) -> None:
    path = written(tmp_path)
    content = json.loads(path.read_text())
    faster = {"al_s": 0.25, "al_s_ci_low": None, "al_s_ci_high": None, "tokens_per_s": 4096.0}
    reasons = content["unavailable"] | {"al_s_ci_low": "none", "al_s_ci_high": "none"}
    path.write_text(json.dumps(with_checksum(content | faster | {"unavailable": reasons})))
    with pytest.raises(MetricsError, match="a step took 0.25 s, and by steps.jsonl 0.5 s"):
        read_plausible(path)


def test_ranks_besides_the_first_may_be_slower(tmp_path: Path) -> None:
    assert read_plausible(written(tmp_path, 0.45, dp=2))
