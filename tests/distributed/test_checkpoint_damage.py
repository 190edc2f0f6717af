"""Checkpoints that are not what was written: damaged or half written."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.checkpoints import read_weights, resume
from support.ranks import Ranks

from efficientbench.basics.errors import CheckpointError
from efficientbench.training.checkpoints.manifest import (
    MANIFEST,
    checkpoint_folder,
    complete,
    find_good,
    keep_last,
    read_manifest,
    remove_partial,
    set_damaged_aside,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_flipped_byte_in_any_file_is_detected_and_named(run_folder: Path) -> None:
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


def test_a_changed_byte_anywhere_in_a_manifest_is_detected(run_folder: Path, tmp_path: Path) -> None:
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
def test_missing_surplus_and_changed_files_are_detected(run_folder: Path, damage: str) -> None:
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


def test_a_half_written_folder_is_no_checkpoint(run_folder: Path) -> None:
    newest = checkpoint_folder(run_folder, 4)
    half = newest.with_name(".partial_step_00000006_0a1b2c3d")
    shutil.copytree(newest, half)
    assert complete(run_folder) == [checkpoint_folder(run_folder, 2), newest]
    remove_partial(run_folder)
    assert not half.exists()
    assert find_good(run_folder)[0] == newest


def test_damaged_checkpoints_are_set_aside_and_do_not_count_as_kept(run_folder: Path) -> None:
    newest, older = checkpoint_folder(run_folder, 4), checkpoint_folder(run_folder, 2)
    (newest / "common.pt").unlink()
    set_damaged_aside(run_folder, older)
    assert names(run_folder / "checkpoint") == ["damaged_step_00000004", "step_00000002"]
    shutil.copytree(older, checkpoint_folder(run_folder, 3))
    keep_last(run_folder, checkpoint_folder(run_folder, 3), keep=1)
    assert names(run_folder / "checkpoint") == ["damaged_step_00000004", "step_00000003"]


def test_ranks_refuse_damage_before_they_read_a_weight(
    run_folder: Path, corpus: Path, ranks: Callable[[int], Ranks]
) -> None:
    newest = checkpoint_folder(run_folder, 4)
    with (newest / "__1_0.distcp").open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff\x00\xff")
    with pytest.raises(AssertionError, match=r"__1_0.distcp: damaged, its SHA-256 is not that of the manifest"):
        resume(ranks, corpus, newest)


def test_devices_and_pipes_among_the_files_of_a_checkpoint_are_refused(run_folder: Path) -> None:
    newest = checkpoint_folder(run_folder, 4)
    for name in (MANIFEST, "common.pt", ".metadata"):
        content = (newest / name).read_bytes()
        (newest / name).unlink()
        (newest / name).symlink_to("/dev/zero")
        assert find_good(run_folder) == (checkpoint_folder(run_folder, 2), [f"{newest / name}: is no regular file"])
        (newest / name).unlink()
        os.mkfifo(newest / name)
        assert find_good(run_folder) == (checkpoint_folder(run_folder, 2), [f"{newest / name}: is no regular file"])
        (newest / name).unlink()
        (newest / name).touch()
        os.truncate(newest / name, 40 * 10**9)
        good, [problem] = find_good(run_folder)
        assert good == checkpoint_folder(run_folder, 2)
        assert problem.startswith(f"{newest / name}: ")
        assert "40,000,000,000 bytes" in problem
        (newest / name).unlink()
        (newest / name).write_bytes(content)


def test_a_dangling_link_does_not_block_the_next_checkpoint(run_folder: Path) -> None:
    older, newest = checkpoint_folder(run_folder, 2), checkpoint_folder(run_folder, 4)
    shutil.rmtree(newest)
    newest.symlink_to(run_folder / "was_on_another_disk")
    assert find_good(run_folder) == (older, [f"{newest / MANIFEST}: missing"])
    for _ in range(2):
        set_damaged_aside(run_folder, older)
        assert names(run_folder / "checkpoint") == ["damaged_step_00000004", "step_00000002"]
        # As a run writes it: into a folder of another name.
        shutil.copytree(older, run_folder / "checkpoint" / "new")
        (run_folder / "checkpoint" / "new").rename(newest)
        shutil.rmtree(newest)
        newest.symlink_to(run_folder / "was_on_another_disk")
    keep_last(run_folder, newest, keep=1)
    assert names(run_folder / "checkpoint") == ["damaged_step_00000004", "step_00000004"]


def test_the_newest_checkpoint_is_the_one_of_most_steps(tmp_path: Path) -> None:
    for step in (100_000_000, 99_999_999):
        checkpoint_folder(tmp_path, step).mkdir(parents=True)
    assert complete(tmp_path)[-1] == checkpoint_folder(tmp_path, 100_000_000)
    # As transformers names them, of a fine-tuning.
    for name in ("checkpoint-100", "checkpoint-99", "checkpoint-9.partial", "damaged_checkpoint-101"):
        (tmp_path / "tuned" / "checkpoint" / name).mkdir(parents=True)
    assert [path.name for path in complete(tmp_path / "tuned")] == ["checkpoint-99", "checkpoint-100"]
