"""Another user than root, a home that cannot be written, a full /dev/shm: a run needs none of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import TINY, command, environment, record

# No root, who may do everything: this user reads what root reads, and writes what all may write.
UNPRIVILEGED = (
    "mount -t tmpfs -o size=4k,mode=755 tmpfs /dev/shm && { cat /dev/zero >/dev/shm/full 2>/dev/null || true; } && "
    "exec setpriv --reuid=12345 --regid=12345 --clear-groups --inh-caps=+dac_read_search "
    '--ambient-caps=+dac_read_search "$@"'
)


def as_a_user(words: list[str], cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """A command of a user whom the system does not know, whose home cannot be written, with a full /dev/shm."""
    names = ("USER", "LOGNAME", "XDG_CACHE_HOME", "TMPDIR", "TRITON_CACHE_DIR", "TRITON_HOME")
    plain = {name: value for name, value in environment(HOME="/").items() if name not in names}
    return subprocess.run(
        ["unshare", "--mount", "bash", "-ec", UNPRIVILEGED, "user", *words],
        cwd=cwd,
        env={**plain, **changes},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody reaches and may write."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("another user can only be taken by root")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        if (tried := as_a_user(["true"], Path(name))).returncode != 0:
            pytest.skip(f"another user cannot be taken here: {tried.stderr}")
        yield Path(name)


@pytest.mark.proof
def test_a_run_of_an_unknown_user_completes(folder: Path) -> None:
    words = command("run", "gqa_0.5B", "--smoke", *TINY, "parallel.dp=2")
    done = as_a_user(words, folder)
    assert done.returncode == 0, done.stderr
    run = folder / "output" / "efficientllm_benchmark" / "gqa_0.5B_smoke"
    assert record(run)["status"] == "completed"
    assert (run / "record.json").stat().st_uid == 12345
    for words in (
        command("doctor"),
        command("report", "output/efficientllm_benchmark"),
        command("generate", str(run), "--prompt", "a", "--max-new-tokens", "2"),
    ):
        done = as_a_user(words, folder)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr


def test_compilers_have_a_cache_where_the_home_cannot_be_written(folder: Path) -> None:
    code = "import os; from efficientbench.launchers.files import writable_caches as w; print(w(os.environ))"
    words = [sys.executable, "-c", code]
    expected = {"TRITON_CACHE_DIR": str(folder / "triton_uid_12345")}
    assert as_a_user(words, folder, TMPDIR=str(folder)).stdout.strip() == str(expected)
    made = folder / "triton_uid_12345"
    assert (made.stat().st_mode & 0o777, made.stat().st_uid) == (0o700, 12345)
    assert as_a_user(words, folder, TMPDIR=str(folder), HOME=str(folder)).stdout == "{}\n"
    assert as_a_user(words, folder, TMPDIR=str(folder), TRITON_HOME="/a").stdout == "{}\n"
    made.rmdir()
    # Another user's, who could put code there.
    made.mkdir(mode=0o777)
    assert as_a_user(words, folder, TMPDIR=str(folder)).stdout == "{}\n"


def test_commands_work_without_a_temporary_folder() -> None:
    """No process may write a byte into a file, as on a full disk."""
    script = 'unset TRITON_CACHE_DIR TRITON_HOME; ulimit -f 0; exec "$@"'
    done = subprocess.run(
        ["bash", "-c", script, "full", *command("list")],
        env=environment(HOME="nowhere"),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "gqa_0.5B" in done.stdout


def test_a_folder_that_the_user_may_not_write_is_reported(folder: Path) -> None:
    folder.chmod(0o755)
    done = as_a_user(command("run", "gqa_0.5B", "--smoke", *TINY), folder)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith("Permission denied\n")
