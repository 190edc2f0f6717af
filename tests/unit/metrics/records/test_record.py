"""The record and the step log: round trips, refusals, torn files."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import signal
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import ValidationError
from support.metrics_parts import make_record

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas.device_use import Disturbance
from efficientbench.metrics.records.record import read_record, write_record
from efficientbench.metrics.records.sinks.steplog import StepLog, read_steps

MEASURED = {"al_s": 0.125, "tokens": 4096, "steps_measured": 10, "energy_scope": "gpu", "mfu": 0.4}


def test_a_record_is_read_back_as_written(tmp_path: Path) -> None:
    record, path = make_record(MEASURED), tmp_path / "run" / "record.json"
    write_record(record, path)
    assert read_record(path).model_copy(update={"sha256": None}) == record
    assert os.listdir(path.parent) == ["record.json"]
    content = json.loads(path.read_text())
    assert content["pcu"] is None  # absent is null and never zero


def test_an_absent_figure_without_a_reason_is_refused() -> None:
    with pytest.raises(ValidationError, match="absent without a reason in 'unavailable': pcu"):
        make_record({"unavailable": {k: v for k, v in make_record().unavailable.items() if k != "pcu"}})


def test_a_record_checks_the_parts_that_it_is_built_from() -> None:
    with pytest.raises(ValidationError, match=r"disturbances.0.end_s\n  Input should be a finite number"):
        make_record({"disturbances": [Disturbance("GPU-0", 1.0, math.nan, "process 7")]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("seed"), "seed: Field required"),
        (lambda c: c.update(seed="1"), "seed: Input should be a valid integer"),
        (lambda c: c.update(tokens_s=1), "tokens_s: Extra inputs are not permitted (did you mean tokens?)"),
        (lambda c: c.update(schema_version=99), "written in schema version 99; this program reads 3"),
        (lambda c: c["unavailable"].pop("hfu"), "absent without a reason in 'unavailable': hfu"),
        (lambda c: c.update(mfu=math.nan), "mfu: Input should be a finite number"),
        (lambda c: c.update(windows=[{"begin_s": 0, "end": 1}]), "windows.0.end: Unexpected keyword argument"),
    ],
)
def test_a_wrong_record_is_refused_and_its_key_named(change: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(make_record(MEASURED), path)
    content = json.loads(path.read_text())
    change(content)  # type: ignore[operator]
    path.write_text(json.dumps(content))
    with pytest.raises(MetricsError, match=f"^{re.escape(str(path))}: .*{re.escape(message)}"):
        read_record(path)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1]", b"\x00\x01", b"\xff\xfe{}", b'{"run": "a"', pytest.param(b"[" * 100_000, id="nested")]
)
def test_a_damaged_file_is_named(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(text)
    with pytest.raises(MetricsError, match=re.escape(str(path))):
        read_record(path)
    with pytest.raises(MetricsError, match="cannot be read"):
        read_record(tmp_path / "nowhere.json")


def test_a_record_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MetricsError, match=re.escape(f"{tmp_path}/file/record.json: cannot be written")):
        write_record(make_record(), tmp_path / "file" / "record.json")


def test_an_interrupted_write_leaves_the_old_record(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(make_record(), path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
        with pytest.raises(MetricsError, match="File too large"):
            write_record(make_record({"status": "failed"}), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert read_record(path).model_copy(update={"sha256": None}) == make_record()
    assert os.listdir(tmp_path) == ["record.json"]


def test_each_line_is_flushed_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log" / "steps.jsonl"
    with closing(StepLog(path)) as log:
        log.write("step", {"step": 1, "loss": 2.5, "tokens": 128})
        assert read_steps(path) == [{"kind": "step", "step": 1, "loss": 2.5, "tokens": 128}]
        log.write("evaluation", {"step": 1, "validation_loss": 2.75})
        assert [line["kind"] for line in read_steps(path)] == ["step", "evaluation"]


def test_a_nan_or_infinite_loss_is_written_as_valid_json(tmp_path: Path) -> None:
    with closing(StepLog(tmp_path / "steps.jsonl")) as log:
        log.write("step", {"step": 3, "loss": math.nan, "grad_norm": math.inf, "lr": 0.1})
    assert not re.search("NaN|Infinity", (tmp_path / "steps.jsonl").read_text())
    assert read_steps(tmp_path / "steps.jsonl") == [
        {
            "kind": "step",
            "step": 3,
            "loss": None,
            "grad_norm": None,
            "lr": 0.1,
            "not_finite": {"loss": "nan", "grad_norm": "inf"},
        }
    ]


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_torn_last_line_is_skipped_and_cut_by_the_next_run(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    with closing(StepLog(path)) as log:
        log.write("step", {"step": 1})
        log.write("step", {"step": 2, "note": "x" * 20})
    path.write_bytes(path.read_bytes()[:-cut])
    assert [line["step"] for line in read_steps(path)] == [1]
    with closing(StepLog(path)) as log:
        log.write("step", {"step": 2})
    assert [line["step"] for line in read_steps(path)] == [1, 2]


def test_a_long_torn_line_is_cut_completely(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    for whole in (b'{"kind": "step", "step": 1}\n', b""):
        path.write_bytes(whole + b"x" * 200_000)
        StepLog(path).close()
        assert path.read_bytes() == whole


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text('{"kind": "step"}\n{"kind": \n{"kind": "step"}\n')
    with pytest.raises(MetricsError, match="line 2: damaged"):
        read_steps(path)


def test_a_full_disk_is_refused() -> None:
    with closing(StepLog(Path("/dev/full"))) as log, pytest.raises(MetricsError, match="No space left"):
        log.write("step", {"step": 1})
