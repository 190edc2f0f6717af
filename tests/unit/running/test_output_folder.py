"""The folder of a run, where somebody else may have laid a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from efficientbench.basics.errors import ConfigError
from efficientbench.config.quantization import Quantization
from efficientbench.running.output_folder import OutputFolder


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("all of it")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "lock").symlink_to(precious)
    with pytest.raises(ConfigError, match="cannot be written"), OutputFolder(folder).claimed():
        pass
    assert precious.read_text() == "all of it"


def test_a_folder_locked_by_another_run_is_refused_and_its_process_named(tmp_path: Path) -> None:
    message = rf"is in use by another run \(process {os.getpid()}\); .*output=FOLDER \(of a speedrun: --work FOLDER\)"
    with OutputFolder(tmp_path).claimed(), pytest.raises(ConfigError, match=message), OutputFolder(tmp_path).claimed():
        pass
    with OutputFolder(tmp_path).claimed():
        pass


def test_a_locked_folder_in_the_cache_is_refused_by_the_key_that_moves_it(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path, "data.cache")
    message = rf"^data.cache: {tmp_path} is in use by .*data.cache=FOLDER$"
    with folder.claimed(), pytest.raises(ConfigError, match=message), folder.claimed():
        pass


def test_evaluations_are_set_aside_with_their_model(tmp_path: Path) -> None:
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "core.json").write_text("{}")
    OutputFolder(tmp_path).set_aside()
    assert not (tmp_path / "evaluation").exists()
    assert len(list(tmp_path.glob("previous/*/evaluation/core.json"))) == 1


def test_a_single_file_is_set_aside_without_the_others(tmp_path: Path) -> None:
    for name in ("generation.json", "record.json"):
        (tmp_path / name).write_text("{}")
    OutputFolder(tmp_path).set_aside(("generation.json",))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["previous", "record.json"]
    assert len(list(tmp_path.glob("previous/*/generation.json"))) == 1


def test_a_widths_folder_names_its_runs(tmp_path: Path) -> None:
    run = OutputFolder(tmp_path / "gqa")
    assert run.quantized(Quantization(weights="int8")).of_run.path == run.path
    assert run.of_run is run
