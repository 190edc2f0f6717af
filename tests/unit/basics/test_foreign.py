"""Files of others: what never ends, nests or is too large is refused, and no text of a record moves a terminal."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.metrics_parts import make_record, printed, read_csv
from support.synthetic_runs import gpu_run

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.files import no_link
from efficientbench.basics.foreign import MOST_BYTES, open_regular, parse_json, plain_text, read_whole
from efficientbench.metrics.records.plausible import contradictions
from efficientbench.metrics.records.record import RunRecord, read_record, write_record
from efficientbench.metrics.records.sinks.steplog import read_steps
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.headline import print_results
from efficientbench.metrics.report.sections.failures import load_failures, print_failures
from efficientbench.metrics.sensors.replay import read_trace

ESCAPE = "\x1b[2J\x9b1m\x07\u202e"


LEASE = """
import fcntl, os, signal, sys
file = os.open(sys.argv[1], os.O_RDWR)
signal.signal(signal.SIGIO, lambda *_: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK))
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
while True:
    signal.pause()
"""


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, MOST_BYTES + 1)


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a device": (lambda path: path.symlink_to("/dev/null"), "it is no regular file"),
    "a folder": (lambda path: path.mkdir(), "it is no regular file"),
    "a pipe": (os.mkfifo, "it is no regular file but a pipe: write its content into a file first"),
    "too large": (sparse, f"{MOST_BYTES:,} are the most that is read"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_endless_files_are_refused(tmp_path: Path, kind: str) -> None:
    make, message = HOSTILE[kind]
    path = tmp_path / "record.json"
    make(path)
    with pytest.raises(OSError, match=message):
        read_whole(path)
    with pytest.raises(MetricsError, match=f"record.json: cannot be read .*{message}"):
        read_record(path)


@pytest.mark.parametrize("mode", ["rb", "ab"])
def test_reading_a_regular_file_waits_for_its_file_system(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "file"
    path.touch()
    with open_regular(path) if mode == "rb" else open(path, mode, opener=no_link) as file:
        assert os.get_blocking(file.fileno())


@pytest.mark.parametrize("mode", ["rb", "ab"])
def test_a_file_leased_by_another_process_is_read_after_the_lease(tmp_path: Path, mode: str) -> None:
    """A file server holds such leases, and gives a lease back once it is asked."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with subprocess.Popen([sys.executable, "-c", LEASE, path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        try:
            if holder.stdout.readline() != b"held\n":
                pytest.skip("this file system has no leases")
            with open_regular(path) if mode == "rb" else open(path, mode, opener=no_link) as file:
                assert os.fstat(file.fileno()).st_size == 7
        finally:
            holder.kill()


@pytest.mark.parametrize("kind", ["a device", "a folder", "a pipe"])
def test_every_reader_refuses_an_endless_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    HOSTILE[kind][0](path)
    for read in (read_steps, read_trace):
        with pytest.raises(MetricsError, match="file: cannot be read .*no regular file"):
            read(path)


def test_deeply_nested_json_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(b"[" * 100_000)
    assert parse_json('{"a": [1]}') == {"a": [1]}


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff", b"null", b'{"kind": 1}', b'{"kind": [], "reason": {}}'])
def test_an_unreadable_failure_file_does_not_prevent_a_report(tmp_path: Path, content: bytes) -> None:
    write_record(make_record(), tmp_path / "run" / "record.json")
    (tmp_path / "run" / "failure.json").write_bytes(content)
    (tmp_path / "other").mkdir()
    os.mkfifo(tmp_path / "other" / "failure.json")
    os.mkfifo(tmp_path / "other" / "record.json")
    report = build_report(tmp_path)
    assert len(report.records) == 1
    assert [warning for warning in report.warnings if "no regular file" in warning]


@pytest.mark.parametrize("line", ["[" * 100_000, "\udcff", '"text"', '{"device": []}', '{"device": 3, "time_s": 1}'])
def test_a_line_that_is_no_reading_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(MetricsError, match=r"trace\.jsonl"):
        read_trace(path)


def spots(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all texts within JSON."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place] * isinstance(value, str) + [spot for key, each in below for spot in spots(each, (*place, key))]


def hostile_record() -> tuple[dict[str, Any], int]:
    """A record with a terminal's commands in every text that is not one of a few, and their number."""
    content, changed = gpu_run("moe", "1.5B", steps=60).model_dump(mode="json"), 0
    names = ("memory_used_gb", "utilization", "power_w")
    lists = {f"{name}_{kind}": [1.0] for name in names for kind in ("mean", "max")}
    timeline = {"device": "0", "device_name": "GPU", "scope": "gpu", "bucket_s": 1.0, "time_s": [0.5], **lists}
    content |= {"timelines": [timeline], "amu_fraction": 0.9}
    assert is_true(content)
    content["unavailable"] |= {f"{ESCAPE}=1+1": f"{ESCAPE}no"}
    for place in spots(content):
        holder = content
        for key in place[:-1]:
            holder = holder[key]
        before = holder[place[-1]]
        holder[place[-1]] = f"{before}{ESCAPE}"
        if is_true(content):
            changed += 1
        else:
            holder[place[-1]] = before
    return content, changed


def is_true(content: dict[str, Any]) -> bool:
    """Whether a report takes the record."""
    try:
        record = RunRecord.model_validate_json(json.dumps(content))
    except ValidationError:
        return False
    return not list(contradictions(record, datetime.now(timezone.utc)))


def test_text_of_a_record_cannot_control_a_terminal(tmp_path: Path) -> None:
    content, changed = hostile_record()
    assert changed > 20
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(json.dumps({**content, "run": f"{name}{ESCAPE}"}))
    failure = {"kind": f"crash{ESCAPE}", "reason": f"why{ESCAPE}", "step": 3}
    (tmp_path / "one" / "failure.json").write_text(json.dumps(failure))
    report = build_report(tmp_path, paper=True)
    shown = printed(print_results, report.records, width=400) + printed(print_failures, report.failures, width=400)
    shown += "".join(path.read_text() for path in report.written if path.is_file())
    assert "one\ufffd" in shown
    assert not set(ESCAPE) & set(shown) - set("[2J1m")
    assert load_failures(tmp_path)[0][0].reason == f"why{plain_text(ESCAPE)}"


def test_line_breaks_and_other_scripts_are_kept() -> None:
    text = "a\n\tb \u4e2d\u6587 \u3000 \u200d é"
    assert plain_text(text) == text


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\n"])
def test_no_text_cell_of_a_csv_is_a_formula(tmp_path: Path, begin: str) -> None:
    formula = f'{begin}HYPERLINK("http://example.org")'
    hostile = make_record({"run": formula, "device_name": formula}, reason=formula)
    write_record(hostile, tmp_path / "run" / "record.json")
    build_report(tmp_path)
    [row] = read_csv(tmp_path / "report.csv")
    assert (row["run"], row["device_name"]) == (f"'{formula}", f"'{formula}")
    with (tmp_path / "report.csv").open(newline="") as file:
        cells = [cell for line in csv.reader(file) for cell in line]
    assert not [cell for cell in cells if cell.startswith(begin) and not _is_number(cell)]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
