"""Manifests in the folders of models, which other programs and their users change too."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import cast

import pytest

from efficientbench.basics.errors import CheckpointError
from efficientbench.running.job import Job
from efficientbench.running.trained import TrainedRun
from efficientbench.training.checkpoints.hashing import fingerprint
from efficientbench.training.checkpoints.manifest import (
    MANIFEST,
    Manifest,
    checkpoint_folder,
    seal,
    verify,
    verify_where_listed,
)

HINT = "; remove manifest.json if you changed the folder yourself"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with one file and its manifest."""
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    seal(tmp_path, Manifest(1, False, "weights", {}, [], {}, "", 0, 1, None, {}))
    return tmp_path


def test_files_beside_those_of_a_manifest_are_no_damage(model: Path) -> None:
    (model / "README.md").write_text("what others wrote")
    (model / ".cache" / "huggingface").mkdir(parents=True)
    (model / ".cache" / "huggingface" / ".gitignore").write_text("*")
    verify_where_listed(model)
    # What only this program writes into holds nothing else.
    with pytest.raises(CheckpointError, match=r"\.gitignore: not in the manifest$"):
        verify(model)


@pytest.mark.parametrize("content", [{}, [], {"files": ["a"]}, {"sha256": "0", "content": {}, "version": 1}])
def test_a_manifest_of_another_program_is_ignored(tmp_path: Path, content: object) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps(content))
    verify_where_listed(tmp_path)


@pytest.mark.parametrize("damaged", ["model.safetensors", MANIFEST])
def test_damage_is_reported_with_a_hint_for_deliberate_changes(model: Path, damaged: str) -> None:
    path = model / damaged
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match=rf"{re.escape(damaged)}: damaged.*{HINT}$"):
        verify_where_listed(model)
    path.unlink()
    if damaged != MANIFEST:
        with pytest.raises(CheckpointError, match=rf"{re.escape(damaged)}: missing{HINT}$"):
            verify_where_listed(model)


def test_the_step_is_said_where_a_newer_checkpoint_is_damaged(tmp_path: Path) -> None:
    for step in (15, 60):
        folder = checkpoint_folder(tmp_path, step)
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"weights")
        seal(folder, Manifest(step, False, "weights", {}, [], {}, "", 0, 1, None, {}))
    run = TrainedRun(tmp_path, cast(Job, None))
    assert run.checkpoint() == (checkpoint_folder(tmp_path, 60), [])
    (checkpoint_folder(tmp_path, 60) / "weights").write_bytes(b"weightz")
    found, [damage, taken] = run.checkpoint()
    assert found == checkpoint_folder(tmp_path, 15)
    assert "weights: damaged" in damage
    assert taken == "what follows is of step 15, the newest intact checkpoint"


def test_a_manifest_lists_no_file_outside_its_folder(model: Path) -> None:
    outside = model.parent / "outside"
    outside.write_bytes(b"other")
    (model / MANIFEST).unlink()
    files = {"../outside": fingerprint(outside)}
    Manifest(1, False, "weights", {}, [], {}, "", 0, 1, None, {}, files).write(model)
    with pytest.raises(CheckpointError, match=rf"outside: missing{HINT}$"):
        verify_where_listed(model)
