"""A user's mistake gets one clear message and exit code 2, no traceback, and nothing that looks finished."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import LONG, Finished, efficientbench, failure, interrupted

from efficientbench.training.checkpoints.manifest import find_good

Tiny = tuple[str, ...]


def refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """One message that has all parts, in order, and nothing else on stderr."""
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 2, done.stdout + done.stderr
    assert (done.stderr.startswith("error: "), done.stderr.count("error: ")) == (True, 1)
    assert re.search(".*".join(map(re.escape, parts)), done.stderr, re.DOTALL), f"{parts} are not in: {done.stderr}"


def nothing_looks_finished(folder: Path) -> None:
    records = [json.loads(path.read_text(encoding="utf-8")) for path in folder.rglob("record.json")]
    assert [record["status"] for record in records if record["status"] != "failed"] == []


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        pytest.param(
            ["training.seqlen=64"],
            ["training.seqlen: unknown key; did you mean training.seq_len?"],
            marks=pytest.mark.proof,
        ),
        pytest.param(
            ["training.steps=many"], ["training.steps: 'many' does not fit: ", "integer"], marks=pytest.mark.proof
        ),
        (["training.steps=many", "modle.heads=4"], ["2 problems:", "modle.heads", "model.heads", "training.steps"]),
        pytest.param(["parallel.tp=8"], ["parallel.tp: 8 does not divide the 4 heads"], marks=pytest.mark.proof),
        (["training.steps=null", "training.tokens=300"], ["training.tokens: 300 tokens", "set training.tokens=512"]),
        (["device=cdua"], ["device=cdua is not one of auto, ", "did you mean"]),
        (
            ["dlc", "model.heads=6", "parallel.tp=3", "parallel.dp=1"],
            ["3 ranks cannot be spread evenly over 2 nodes"],
        ),
    ],
)
def test_a_mistake_in_the_configuration_is_one_message(
    tiny: Tiny, tmp_path: Path, overrides: list[str], parts: list[str]
) -> None:
    # The variables count for `dlc` alone.
    refused(efficientbench(*tiny, *overrides, MASTER_ADDR="127.0.0.1", WORLD_SIZE="2", RANK="0"), *parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        pytest.param("missing.jsonl", None, ["missing.jsonl: no such file"], marks=pytest.mark.proof),
        pytest.param("empty.txt", "", ["empty.txt is empty"], marks=pytest.mark.proof),
        ("broken.jsonl", '{"text": "fine"}\n{"text": \n', ["broken.jsonl:2: not JSON"]),
        (
            "short.txt",
            "One document is too few to set some aside.\n",
            ["data.split", "none of the 1 document of", "validation"],
        ),
    ],
)
def test_a_mistake_in_the_text_is_one_message(
    tiny: Tiny, tmp_path: Path, name: str, content: str | None, parts: list[str]
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content, encoding="utf-8")
    refused(efficientbench(*tiny, "--data", str(path), f"data.cache={tmp_path / 'data'}"), *parts)
    nothing_looks_finished(tmp_path)


@pytest.mark.proof
def test_a_mistake_does_not_change_an_earlier_run(tiny: Tiny, tmp_path: Path, folder: Path) -> None:
    assert interrupted(folder, (*tiny, *LONG), signal.SIGTERM, 2) == 143
    saved = find_good(folder)[0]
    (tmp_path / "broken.jsonl").write_text('{"text": \n')
    for name, found in (("missing.txt", "no such file"), ("broken.jsonl", "not JSON")):
        refused(efficientbench(*tiny, *LONG, "--data", str(tmp_path / name)), name, found)
    assert find_good(folder)[0] == saved
    assert failure(folder)["kind"] == "stopped"
    kept = {"record.json", "steps.jsonl", "checkpoint"}
    assert {path.name for path in folder.iterdir()} & {*kept, "previous"} == kept


def test_a_disk_full_from_the_start_is_reported(tiny: Tiny, small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(1000)
    folder = disk / "gqa_1.5B_smoke"
    folder.mkdir()
    with contextlib.suppress(OSError), (disk / "filling").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    refused(efficientbench(*tiny, f"output={disk}"), f"output: {folder} cannot be written: No space left on device")


@pytest.mark.parametrize(
    "index",
    [b"MMIDIDX\x00\x00 and then rubbish", *(pytest.param(each, marks=pytest.mark.proof) for each in (b"", bytes(200)))],
)
def test_a_corrupt_index_is_reported(tiny: Tiny, tmp_path: Path, index: bytes) -> None:
    (tmp_path / "pair.bin").write_bytes(bytes(400))
    (tmp_path / "pair.idx").write_bytes(index)
    refused(efficientbench(*tiny, "--data", str(tmp_path / "pair")), "pair.idx", "byte")
    nothing_looks_finished(tmp_path)


@pytest.mark.proof
def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tiny: Tiny, tmp_path: Path, shared_data: Path) -> None:
    words = ["--data", str(shared_data / "c4" / "c4_demo.jsonl"), "--tokenizer", str(shared_data / "qwen2_tokenizer")]
    words += ["model.vocab_size=1024"]
    refused(efficientbench(*tiny, *words), "model.vocab_size: ", "151,646", "set model.vocab_size=151646 or more")
    nothing_looks_finished(tmp_path)


def test_a_run_that_cannot_fit_is_refused(tmp_path: Path) -> None:
    # A sequence so long that no host has the memory for it.
    words = ["device=cpu", f"output={tmp_path}", "training.seq_len=1048576", "training.dtype=fp32"]
    done = efficientbench("run", "gqa_3B", *words)
    refused(done, "gqa_3B does not fit: a rank needs about ", " GB and this machine has ", "what would help: --smoke")
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_that_cannot_be_created_is_reported(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    refused(efficientbench(*tiny, f"output={tmp_path / 'file'}"), "output: ", "cannot be written: Not a directory")


@pytest.mark.proof
def test_no_space_for_the_data_is_reported(tiny: Tiny, tmp_path: Path, small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(100)
    refused(efficientbench(*tiny, f"data.cache={disk}"), f"no space left in {disk}", " MB are free)")
    assert not any(path.is_file() and path.stat().st_size for path in disk.rglob("*"))
    nothing_looks_finished(tmp_path)


@pytest.mark.proof
def test_no_space_for_the_index_is_reported(
    train: Callable[..., Finished], tiny: Tiny, cache: str, tmp_path: Path, small_disk: Callable[[int], Path]
) -> None:
    assert train().done.returncode == 0
    disk = small_disk(100_000)
    shutil.copytree(cache, disk, dirs_exist_ok=True, ignore=shutil.ignore_patterns("index"))
    used_bytes = shutil.disk_usage(disk).used
    small_disk(used_bytes // 1024 + 12)
    refused(efficientbench(*tiny, *LONG, f"data.cache={disk}"), f"no space left in {disk}", "free some")
    nothing_looks_finished(tmp_path)


@pytest.mark.proof
@pytest.mark.parametrize("kilobytes", [8, 24])
def test_no_space_for_the_output_is_reported(tiny: Tiny, small_disk: Callable[[int], Path], kilobytes: int) -> None:
    disk = small_disk(kilobytes)
    refused(efficientbench(*tiny, f"output={disk}"), str(disk), "No space left on device")
    nothing_looks_finished(disk)
