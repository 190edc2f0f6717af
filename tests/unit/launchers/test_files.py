"""Files and temporary folders of the launchers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from efficientbench.launchers.files import TEMPORARY, YOUNG_S, temporary_folder, write_whole

HOLDS = """
import sys, time
from efficientbench.launchers.files import temporary_folder
with temporary_folder() as folder:
    (folder / "content").touch()
    print(folder, flush=True)
    time.sleep(60)
"""


def test_a_link_at_the_temporary_name_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("all of it")
    (tmp_path / f".file.{os.getpid()}").symlink_to(precious)
    with pytest.raises(OSError):  # noqa: PT011, whatever the system calls it
        write_whole(tmp_path / "file", b"new")
    assert precious.read_text() == "all of it"


def test_temporary_folders_of_a_killed_launcher_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    elsewhere = tmp_path / f"{TEMPORARY}link"
    elsewhere.symlink_to(tmp_path / "somebody")
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDS], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    folders = [Path(holder.stdout.readline().strip()) for holder in holders if holder.stdout is not None]
    for folder in folders:
        then_s = folder.stat().st_mtime - 2 * YOUNG_S
        os.utime(folder, (then_s, then_s))
    holders[0].kill()
    holders[0].wait()
    try:
        with temporary_folder() as own:
            assert sorted(tmp_path.glob(f"{TEMPORARY}*")) == sorted([folders[1], own, elsewhere])
        assert not own.exists()
    finally:
        holders[1].kill()
        holders[1].wait()
