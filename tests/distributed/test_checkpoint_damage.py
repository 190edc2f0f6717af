"""Checkpoints that are not what was written: damaged, half written, or made by somebody who means harm."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import train
from support.configs import tiny
from support.ranks import Ranks
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from efficientbench.training.checkpoints import manifest
from efficientbench.training.checkpoints.manifest import (
    MANIFEST,
    checkpoint_folder,
    complete,
    find_good,
    fingerprint,
    keep_last,
    read_manifest,
    remove_partial,
    set_damaged_aside,
    verify,
)
from efficientbench.training.checkpoints.read import read_weights
from efficientbench.training.errors import CheckpointError

STEPS = (2, 4)


@pytest.fixture(scope="module")
def original(ranks: Callable[[int], Ranks], corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with checkpoints after steps 2 and 4."""
    folder = tmp_path_factory.mktemp("original")
    settings = ("checkpoint.interval=2", "checkpoint.keep=3", "parallel.dp=2")
    ranks(2).call(train, tiny("gqa_1.5B", f"data.cache={corpus.parent}", *settings), corpus, max(STEPS) + 1, folder)
    return folder


@pytest.fixture
def run_folder(original: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil, without the last checkpoint, which holds weights alone."""
    for step in STEPS:
        shutil.copytree(checkpoint_folder(original, step), checkpoint_folder(tmp_path, step))
    return tmp_path


def rewrite_manifest(folder: Path) -> None:
    """What one who can write into the folder would do: make all checksums fit."""
    whole = json.loads((folder / MANIFEST).read_text())["content"]
    for name in list(whole["files"]):
        seen = fingerprint(folder / name)
        whole["files"][name] = {"sha256": seen.sha256, "bytes": seen.bytes}
    (folder / MANIFEST).write_text(manifest._text(whole))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_flipped_byte_in_any_file_is_found_and_named(run_folder: Path) -> None:
    newest = checkpoint_folder(run_folder, 4)
    assert find_good(run_folder)[0] == newest
    assert names(newest) == [".metadata", "__0_0.distcp", "__1_0.distcp", "common.pt", MANIFEST, "metadata.json"]
    for name in names(newest):
        content = bytearray((newest / name).read_bytes())
        for place in range(0, len(content), len(content) // 10):
            flipped = bytes([*content[:place], content[place] ^ 1, *content[place + 1 :]])
            (newest / name).write_bytes(flipped)
            good, (problem,) = find_good(run_folder)
            assert good == checkpoint_folder(run_folder, 2), f"{name}, byte {place}"
            assert problem.startswith(f"{newest / name}: "), problem
            with pytest.raises(CheckpointError, match=f"{name}: "):
                read_weights(newest)
        (newest / name).write_bytes(content)
    assert find_good(run_folder)[0] == newest


def test_every_byte_of_a_manifest_counts(run_folder: Path, tmp_path: Path) -> None:
    # A short one: each byte is flipped.
    whole = read_manifest(checkpoint_folder(run_folder, 4))
    dataclasses.replace(whole, config={"training": {"steps": 6}}, progress={}).write(tmp_path)
    path = tmp_path / MANIFEST
    content = path.read_bytes()
    for place in range(len(content)):
        flipped = content[place] ^ (1 << place % 8)
        path.write_bytes(bytes([*content[:place], flipped, *content[place + 1 :]]))
        with pytest.raises(CheckpointError, match=f"{MANIFEST}: "):
            read_manifest(tmp_path)
    path.write_bytes(content)
    read_manifest(tmp_path)


@pytest.mark.parametrize("damage", ["missing", "surplus", "cut", "empty"])
def test_files_that_are_not_as_they_were(run_folder: Path, damage: str) -> None:
    newest = checkpoint_folder(run_folder, 4)
    path = newest / "__1_0.distcp"
    if damage == "missing":
        path.unlink()
    elif damage == "surplus":
        path = newest / "__2_0.distcp"
        path.write_bytes(b"who put this here?")
    else:
        os.truncate(path, 0 if damage == "empty" else path.stat().st_size - 1)
    good, (problem,) = find_good(run_folder)
    assert good == checkpoint_folder(run_folder, 2)
    assert problem.startswith(f"{path}: ")


def test_what_was_half_written_is_no_checkpoint(run_folder: Path) -> None:
    newest = checkpoint_folder(run_folder, 4)
    half = newest.with_name(".partial_step_00000006_0a1b2c3d")
    shutil.copytree(newest, half)
    assert complete(run_folder) == [checkpoint_folder(run_folder, 2), newest]
    remove_partial(run_folder)
    assert not half.exists()
    assert find_good(run_folder)[0] == newest


def test_damaged_ones_are_set_aside_and_do_not_count_among_those_kept(run_folder: Path) -> None:
    newest, older = checkpoint_folder(run_folder, 4), checkpoint_folder(run_folder, 2)
    (newest / "common.pt").unlink()
    set_damaged_aside(run_folder, older)
    assert names(run_folder / "checkpoint") == ["damaged_step_00000004", "step_00000002"]
    shutil.copytree(older, checkpoint_folder(run_folder, 3))
    keep_last(run_folder, checkpoint_folder(run_folder, 3), keep=1)
    assert names(run_folder / "checkpoint") == ["damaged_step_00000004", "step_00000003"]


class Touch:
    """Unpickled, it makes a file: what a hostile checkpoint would do, and worse."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.system, (f"touch '{self.path}'",)


@contextlib.contextmanager
def tampered_metadata(folder: Path) -> Iterator[Any]:
    """`.metadata` to change, written back with checksums that fit."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    yield metadata
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    rewrite_manifest(folder)


def resume(ranks: Callable[[int], Ranks], corpus: Path, checkpoint: Path) -> None:
    config = tiny("gqa_1.5B", f"data.cache={corpus.parent}", "parallel.dp=2")
    ranks(2).call(train, config, corpus, 6, checkpoint.parent.parent / "again", checkpoint)


def test_a_foreign_class_in_the_metadata_is_refused(
    run_folder: Path, corpus: Path, ranks: Callable[[int], Ranks]
) -> None:
    newest, trace = checkpoint_folder(run_folder, 4), run_folder / "was_here"
    with tampered_metadata(newest) as metadata:
        metadata.storage_meta = Touch(trace)
    # Checksums do not help against one who writes them too.
    verify(newest)
    with pytest.raises(CheckpointError, match=r"\.metadata: refused, it names posix.system, which is no part"):
        read_weights(newest)
    with pytest.raises(AssertionError, match=r"CheckpointError: .*\.metadata: refused, it names posix.system"):
        resume(ranks, corpus, newest)
    assert not trace.exists()
    # The test itself works: an unpickler that trusts the file does what it says.
    pickle.loads((newest / ".metadata").read_bytes())
    assert trace.exists()


def test_a_foreign_class_beside_the_tensors_is_refused(
    run_folder: Path, corpus: Path, ranks: Callable[[int], Ranks]
) -> None:
    newest, trace = checkpoint_folder(run_folder, 4), run_folder / "was_here"
    torch.save({"state": Touch(trace)}, newest / "common.pt")
    rewrite_manifest(newest)
    with pytest.raises(AssertionError, match=r"common.pt: refused, Weights only load failed"):
        resume(ranks, corpus, newest)
    assert not trace.exists()


NORM = "model.decoder.final_layernorm.weight"


def test_a_foreign_class_in_place_of_a_tensor_is_refused(run_folder: Path) -> None:
    newest, trace = checkpoint_folder(run_folder, 4), run_folder / "was_here"
    hostile = io.BytesIO()
    torch.save(Touch(trace), hostile)
    with tampered_metadata(newest) as metadata:
        stored = next(each for index, each in metadata.storage_data.items() if index.fqn == NORM)
        stored.offset, stored.length = 0, len(hostile.getvalue())
        (newest / stored.relative_path).write_bytes(hostile.getvalue())
    with pytest.raises(CheckpointError, match=r"distcp: refused at byte 0, Weights only load failed"):
        read_weights(newest)
    assert not trace.exists()


def _names_another_file(metadata: Any) -> None:
    next(iter(metadata.storage_data.values())).relative_path = "../../../etc/passwd"


def _names_bytes(metadata: Any) -> None:
    metadata.state_dict_metadata["model.bytes"] = BytesStorageMetadata()


def _describes_no_tensor(metadata: Any) -> None:
    del metadata.state_dict_metadata[NORM]


def _places_no_part(metadata: Any) -> None:
    for index in [each for each in metadata.storage_data if each.fqn == NORM]:
        del metadata.storage_data[index]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_names_another_file, "refused, it reads ../../../etc/passwd, which the manifest lacks"),
        (_names_bytes, "BytesStorageMetadata"),
        (_describes_no_tensor, f"refused, it places {NORM}, which it does not describe"),
        (_places_no_part, "the parts of decoder.final_layernorm.weight are not the whole of it"),
    ],
)
def test_metadata_that_is_not_of_these_files_is_refused(
    change: Callable[[Any], None], reason: str, run_folder: Path
) -> None:
    newest = checkpoint_folder(run_folder, 4)
    with tampered_metadata(newest) as metadata:
        change(metadata)
    with pytest.raises(CheckpointError, match=reason):
        read_weights(newest)


def test_what_is_no_metadata_is_refused(run_folder: Path) -> None:
    newest = checkpoint_folder(run_folder, 4)
    (newest / ".metadata").write_bytes(pickle.dumps({"no": "metadata"}))
    rewrite_manifest(newest)
    with pytest.raises(CheckpointError, match="it is no metadata"):
        read_weights(newest)


def test_ranks_refuse_damage_before_they_read_a_weight(
    run_folder: Path, corpus: Path, ranks: Callable[[int], Ranks]
) -> None:
    newest = checkpoint_folder(run_folder, 4)
    with (newest / "__1_0.distcp").open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff\x00\xff")
    with pytest.raises(AssertionError, match=r"__1_0.distcp: damaged, its SHA-256 is not that of the manifest"):
        resume(ranks, corpus, newest)
