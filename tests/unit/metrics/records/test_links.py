"""What lies where a file is about to be written may be a link to somebody's file, which stays as it is."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.sinks.steplog import StepLog


def test_files_are_never_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("all of it")
    (tmp_path / f".partial-{os.getpid()}-{threading.get_ident()}").symlink_to(precious)
    write_whole(tmp_path / "record.json", "{}")
    (tmp_path / "steps.jsonl").symlink_to(precious)
    with pytest.raises(MetricsError, match=r"steps\.jsonl: cannot be opened \(Too many levels of symbolic links\)"):
        StepLog(tmp_path / "steps.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(MetricsError, match=r"pipe\.jsonl: cannot be opened"):
        StepLog(tmp_path / "pipe.jsonl")
    assert precious.read_text() == "all of it"
    assert (tmp_path / "record.json").read_text() == "{}"
