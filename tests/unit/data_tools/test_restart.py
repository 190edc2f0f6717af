"""Tokenizing that is killed, loses a worker, or fills its disk: the next call continues to the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.data_tools_command import finish
from support.repository import ROOT

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.tokenizer.tokenizer import train_tokenizer
from efficientbench.data_tools.tokenizing import inputs
from efficientbench.data_tools.tokenizing.tokenize import tokenize_files
from efficientbench.data_tools.tokens.indexed import bin_path
from efficientbench.data_tools.tokens.inspection import verify_pair
from efficientbench.data_tools.tokens.manifest import manifest_path

PART_BYTES = 100_000
TEXTS = [f"Document {number}: {'a few words and some more, ' * (number % 60)}" for number in range(4000)]
# The command line, with parts that are small enough for a small input to have many.
COMMAND = (
    "from efficientbench.data_tools import cli; from efficientbench.data_tools.tokenizing import inputs; "
    f"inputs.PART_BYTES = {PART_BYTES}; cli.main()"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of text, one with lines that are not usable, and a tokenizer."""
    folder = tmp_path_factory.mktemp("restart")
    train_tokenizer(TEXTS[:100], 400, folder / "bpe")
    (folder / "text").mkdir()
    for name, texts in (("a", TEXTS[:2500]), ("b", TEXTS[2500:])):
        lines = [json.dumps({"text": text}) for text in texts]
        lines[::500] = ["{broken"] * len(lines[::500])
        (folder / "text" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def started(folder: Path, prefix: Path, *options: str, code: str = COMMAND) -> subprocess.Popen[str]:
    words = ["tokenize", str(folder / "text"), "--output", str(prefix), "--tokenizer", str(folder / "bpe"), *options]
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def contents(prefix: Path) -> dict[str, str]:
    """The checksum of every file beside a pair."""
    paths = [path for path in prefix.parent.rglob("*") if path.is_file()]
    return {str(path.relative_to(prefix.parent)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.fixture
def undisturbed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(inputs, "PART_BYTES", PART_BYTES)
    tokenize_files([folder / "text"], tmp_path / "undisturbed" / "tokens", folder / "bpe")
    return contents(tmp_path / "undisturbed" / "tokens")


def kill_after(process: subprocess.Popen[str], delay_s: float, prefix: Path) -> bool:
    """Kill a run, but not its workers, `delay_s` after it made its folder; whether it was still running."""
    while not list(prefix.parent.glob("tokens.parts/plan.json")) and process.poll() is None:
        time.sleep(0.005)
    time.sleep(delay_s)
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.kill()
    process.communicate()
    psutil.wait_procs(family, timeout=20)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in family)
    return process.returncode == -signal.SIGKILL


@pytest.mark.proof
@pytest.mark.parametrize("kills", [1, 20])
def test_tokenizing_killed_at_random_moments_resumes_to_the_same_bytes(
    folder: Path, tmp_path: Path, undisturbed: dict[str, str], kills: int
) -> None:
    """Each run continues from what the last one left, until one is finished."""
    moments = random.Random(0)
    done = finished = 0
    prefix = tmp_path / "0" / "tokens"
    while done < kills:
        process = started(folder, prefix, "--workers", "2")
        if kill_after(process, moments.uniform(0, 0.4), prefix):
            done += 1
        if manifest_path(prefix).exists():
            verify_pair(prefix)
            finished += 1
            prefix = tmp_path / str(finished) / "tokens"
    code, _, errors = finish(started(folder, prefix, "--workers", "2"))
    assert code == 0, errors
    assert not bin_path(prefix).with_suffix(".parts").exists()
    for number in range(finished + 1):
        # What was killed after its manifest was written has still to be tidied up; everything else is there.
        found = contents(tmp_path / str(number) / "tokens")
        assert {name: value for name, value in found.items() if "tokens.parts" not in name} == undisturbed


@pytest.mark.parametrize(
    "kind",
    ["bin", "json", *(pytest.param(each, marks=pytest.mark.proof) for each in ("lengths", "hashes", "rejects.jsonl"))],
)
def test_a_part_damaged_before_the_resume_is_rebuilt(
    folder: Path, tmp_path: Path, undisturbed: dict[str, str], kind: str
) -> None:
    def stop(done: int, parts: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    prefix = tmp_path / "0" / "tokens"
    with pytest.raises(KeyboardInterrupt):
        tokenize_files([folder / "text"], prefix, folder / "bpe", on_part=stop)
    damaged = next(path for path in sorted(prefix.parent.glob(f"tokens.parts/*.{kind}")) if path.stat().st_size)
    content = bytearray(damaged.read_bytes())
    at = content.index(b'utf8_bytes": ') + 13 if kind == "json" else len(content) // 2
    content[at] ^= 1
    damaged.write_bytes(content)
    tokenize_files([folder / "text"], prefix, folder / "bpe")
    assert contents(prefix) == undisturbed


def test_a_killed_worker_is_named(folder: Path, tmp_path: Path, undisturbed: dict[str, str]) -> None:
    prefix = tmp_path / "0" / "tokens"
    process = started(folder, prefix, "--workers", "2")
    workers: list[psutil.Process] = []
    while not workers or not list(prefix.parent.glob("tokens.parts/0*.json")):
        assert process.poll() is None, process.communicate()
        if not workers:
            children = psutil.Process(process.pid).children()
            workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        time.sleep(0.002)
    workers[0].kill()
    code, _, errors = finish(process)
    assert code == 2
    assert "error: a worker process died (SIGKILL, which the system sends when memory runs out); what is" in errors
    assert not bin_path(prefix).exists()
    assert "continuing from" in finish(started(folder, prefix))[2]
    assert contents(prefix) == undisturbed


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.proof)])
def test_a_full_disk_is_reported_and_tokenizing_resumes_with_more_room(
    small_disk: Callable[[int], Path], folder: Path, tmp_path: Path, undisturbed: dict[str, str], workers: str
) -> None:
    prefix = small_disk(1024) / "out" / "tokens"
    code, _, errors = finish(started(folder, prefix, "--workers", workers))
    assert code == 2
    assert f"error: no space left in {prefix.parent} (" in errors
    assert not [
        path
        for path in prefix.parent.rglob("*")
        if path.suffix in (".bin", ".idx", ".partial") and "tokens.parts" not in path.parts
    ]
    small_disk(30 * 1024)
    assert finish(started(folder, prefix, "--workers", workers))[0] == 0
    assert contents(prefix) == undisturbed


@pytest.mark.proof
def test_a_file_size_limit_is_reported(folder: Path, tmp_path: Path) -> None:
    """A limit of the system that stops a file has the same effect as a full disk, and needs no disk of its own."""
    prefix = tmp_path / "tokens"
    limited = (
        f"import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, {resource.RLIM_INFINITY})); {COMMAND}"
    )
    code, _, errors = finish(started(folder, prefix, "--workers", "1", code=limited))
    assert code == 2
    assert f"error: File too large in {tmp_path} (" in errors
    assert not bin_path(prefix).exists()


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A folder in which the process has, while the test runs, no other rights than everybody's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)
        yield Path(name)
        if is_root:
            os.seteuid(0)


def test_an_unreadable_input_is_named(nobody: Path) -> None:
    train_tokenizer(TEXTS[:100], 300, nobody / "bpe")
    source = nobody / "data.jsonl"
    source.write_text('{"text": "words"}\n')
    source.chmod(0)
    with pytest.raises(DataError, match=r"data\.jsonl: Permission denied"):
        tokenize_files([source], nobody / "tokens", nobody / "bpe")
    assert not bin_path(nobody / "tokens").exists()


@pytest.mark.proof
def test_memory_does_not_grow_with_the_text(folder: Path, tmp_path: Path) -> None:
    """Ten times the text takes the same memory."""
    peaks = []
    for name, times in (("small", 1), ("large", 10)):
        source = tmp_path / f"{name}.jsonl"
        source.write_text((folder / "text" / "a.jsonl").read_text() * times)
        code = (
            "import resource, sys; from pathlib import Path; "
            "from efficientbench.data_tools.tokenizing.tokenize import tokenize_files; "
            f"tokenize_files([{str(source)!r}], Path({str(tmp_path / name)!r}), {str(folder / 'bpe')!r}); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout) * 1024)
    assert peaks[1] < peaks[0] + 60e6
