"""Records, evaluations and generations carry a checksum: damage is found and named in every report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.generated import generation, row
from support.metrics_parts import make_record

from efficientbench.basics.checksum import KEY, with_checksum
from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.records.evaluation import read_evaluation, write_evaluation
from efficientbench.metrics.records.generation.generation import read_generation, write_generation
from efficientbench.metrics.records.record import RunRecord, read_record, write_record
from efficientbench.metrics.report.build import build_report

EVALUATION = {
    "task": "loss",
    "step": 6,
    "items": 4,
    "figures": {"loss": 2.25, "none": None},
    "unavailable": {"none": "é"},
}


def evaluation(path: Path) -> None:
    write_evaluation(EVALUATION, path)


def training(path: Path) -> None:
    write_record(make_record({"environment": {"host": "größer", "values": [1, 2.5, 1e-7, None, True]}}), path)


def generated(path: Path) -> None:
    write_generation(generation("gqa", rows=[row("gqa", 128, 8)]), path)


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "evaluation": (evaluation, read_evaluation),
    "record": (training, read_record),
    "generation": (generated, read_generation),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_detected_or_harmless(kind: str, tmp_path: Path) -> None:
    write, read = KINDS[kind]
    path = tmp_path / f"{kind}.json"
    write(path)
    content, expected = path.read_bytes(), read(path)
    found = 0
    for place in range(0, len(content), max(1, len(content) // 400)):
        path.write_bytes(bytes([*content[:place], content[place] ^ 1 << place % 7, *content[place + 1 :]]))
        try:
            assert read(path) == expected
        except MetricsError as error:
            found += str(error).startswith(f"{path}: ")
    assert found > 200


@pytest.mark.parametrize("kind", KINDS)
def test_the_checksum_covers_content_and_ignores_white_space(kind: str, tmp_path: Path) -> None:
    write, read = KINDS[kind]
    path = tmp_path / f"{kind}.json"
    write(path)
    expected, content = read(path), json.loads(path.read_text())
    assert re.fullmatch("[0-9a-f]{64}", content[KEY])
    path.write_text(json.dumps(dict(reversed(content.items())), indent=7))
    assert read(path) == expected
    path.write_text(json.dumps({**content, KEY: "0" * 64}))
    with pytest.raises(MetricsError, match=rf"{kind}\.json: .*damaged, its sha256 is not that of its content"):
        read(path)


@pytest.mark.parametrize("kind", ["record", "generation"])
def test_a_file_without_a_checksum_is_read_and_gets_one_when_rewritten(kind: str, tmp_path: Path) -> None:
    write, read = KINDS[kind]
    path = tmp_path / f"{kind}.json"
    write(path)
    content = json.loads(path.read_text())
    del content[KEY]
    path.write_text(json.dumps(content))
    old = read(path)
    assert old.sha256 is None
    (write_record if isinstance(old, RunRecord) else write_generation)(old, path)
    assert json.loads(path.read_text()) == with_checksum(content)


def test_every_report_names_unreadable_files_and_files_without_a_checksum(tmp_path: Path) -> None:
    write_record(make_record({"run": "new"}), tmp_path / "new" / "record.json")
    old = make_record({"run": "old"}).model_dump_json(exclude={KEY})
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "record.json").write_text(old)
    folder = tmp_path / "new" / "evaluation"
    for task in ("loss", "core", "passkey"):
        evaluation(folder / f"{task}.json")
    (folder / "loss.json").write_text((folder / "loss.json").read_text().replace("2.25", "2.24"))
    (folder / "passkey.json").write_text('{"step": 3')
    before = {key: value for key, value in EVALUATION.items() if key != "task"}
    (folder / "mmlu.json").write_text(json.dumps(before | {"format": 1}))
    (tmp_path / "new" / "failure.json").write_text("[]")
    done = subprocess.run(
        [sys.executable, "-m", "efficientbench.cli", "report", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    unread = (
        "evaluation/loss.json: cannot be read (damaged",
        "evaluation/passkey.json: cannot be read",
        "failure.json:",
    )
    note = "Without a checksum of their own: old, new (mmlu). "
    page = (tmp_path / "report.html").read_text()
    for text in ((tmp_path / "report.md").read_text(), page, done.stderr):
        for message in unread:
            assert text.count(message) == 1, message
    assert note in (tmp_path / "report.md").read_text()
    assert note in done.stdout
    assert "Without a checksum of their own" in page
    assert "old, new (mmlu)" in page
    # The damaged figure is in none of them.
    assert "2.24" not in (tmp_path / "evaluations.csv").read_text()


@pytest.mark.parametrize("name", ["run", "variant", "size"])
def test_a_record_with_a_name_too_long_for_a_file_is_skipped(name: str, tmp_path: Path) -> None:
    write_record(make_record({"run": "漢" * 85}), tmp_path / "long" / "record.json")
    content = make_record().model_dump(mode="json") | {name: "x" * 5000}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "record.json").write_text(json.dumps(content))
    report = build_report(tmp_path)
    assert len(report.records) == 1
    [message] = [line for line in report.warnings if "other/record.json" in line]
    assert f"{name}: a name has at most 255 bytes in UTF-8, as that of a file; this has 5,000" in message
    assert message.split(": ", 1)[1] in (tmp_path / "report.md").read_text()
