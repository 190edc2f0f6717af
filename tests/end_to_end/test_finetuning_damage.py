"""Damaged and hostile folders of fine-tunings: what protects a training protects these."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import (
    ROOT,
    damage,
    efficientbench,
    environment,
    losses,
    record,
)
from support.hostile import Touch, rewrite_manifest

from efficientbench.basics.errors import CheckpointError, ConfigError
from efficientbench.export.importing import import_folder
from efficientbench.finetuning.base_model import find_model
from efficientbench.finetuning.saved import ADAPTER, ADAPTER_CONFIG, merge
from efficientbench.training.checkpoints.manifest import MANIFEST, complete, find_good, read_manifest, verify

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="TRL needs Python 3.11"),
]

STEPS = ("training.steps=4", "training.validate_every_steps=0", "checkpoint.interval=2", "data.validation_examples=24")
ZERO, DDP = (("lora_tiny", f"zero.stage={stage}", *STEPS) for stage in (3, 0))
FULL = ("full_tiny", "zero.stage=2", *STEPS)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all runs, each of two ranks, complete."""
    output = tmp_path_factory.mktemp("tuned")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "support.tuned_in_forks", str(output / "cache"), str(output)),
            *(",".join(run) for run in (ZERO, DDP, FULL, (*FULL, "from=2"))),
        ],
        env=environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}"),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return output


def unfinished(tuned: Path, run: tuple[str, ...], folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Return a copy of a run as one that was killed before its record, and the command that goes on with it."""
    copied = folder / run[0]
    shutil.copytree(tuned / ",".join(run), copied)
    (copied / "record.json").unlink()
    places = (f"output={folder}", f"cache={tuned / 'cache'}", f"data.path={tuned / 'rows.jsonl'}", "device=cpu")
    return copied, ("finetune", *run, *places)


def newest(folder: Path) -> Path:
    return complete(folder)[-1]


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert "Traceback" not in done.stdout + done.stderr
    return done.stderr.splitlines()


def test_every_file_of_a_checkpoint_is_listed_and_no_pickle_is_executed(tuned: Path) -> None:
    for run in (ZERO, DDP, FULL):
        folder = tuned / ",".join(run)
        assert [path.name for path in complete(folder)] == ["checkpoint-2", "checkpoint-4"]
        saved = folder / ("model" if run == FULL else "adapter")
        for each in (*complete(folder), saved):
            assert verify(each).step == (2 if each.name == "checkpoint-2" else 4)
            names = {path.name for path in each.rglob("*")}
            assert not {name for name in names if name.endswith((".py", ".bin"))}
        assert read_manifest(saved).holds == "weights"
        assert not list((folder / "checkpoint").glob(".partial*"))
        assert record(folder)["finetuning"]["hashing_s"] > 0


def test_each_long_part_of_a_fine_tuning_counts_as_progress(tuned: Path) -> None:
    for run, tensor in ((ZERO, "lora_B"), (FULL, "embed_tokens")):
        phases = (tuned / ",".join(run) / "phases_0.txt").read_text().splitlines()
        assert len({each for each in phases if each.startswith("4: validation, micro-batch ")}) >= 2
        for begin in ("flushing", "hashing"):
            saved = {each for each in phases if each.startswith(f"2: saving a checkpoint, {begin} ")}
            assert len(saved) >= 4
        assert [each for each in phases if each.startswith("4: saving the weights, verifying ") and tensor in each]
        assert "4: saving the weights, hashing config.json, 0 GiB so far" in phases or run == ZERO
    # The last run went on from its second step.
    assert [each for each in phases if each.startswith("0: verifying the checkpoint, hashing ")]


def test_a_checkpoint_of_zero_2_resumes_exactly(tuned: Path) -> None:
    found, whole = (losses(tuned / ",".join(FULL), file) for file in ("steps.jsonl", "whole.jsonl"))
    assert len(found) == 4
    assert found == pytest.approx(whole, rel=1e-6)


def test_a_checkpoint_with_flipped_optimizer_bits_is_skipped_for_the_one_before(tuned: Path, tmp_path: Path) -> None:
    folder, words = unfinished(tuned, ZERO, tmp_path)
    damaged = newest(folder)
    files = sorted(damaged.rglob("*optim_states.pt"))
    assert len(files) == 2
    for path in files:
        content = bytearray(path.read_bytes())
        for place in (len(content) // 3, len(content) // 2):
            content[place] ^= 1
        path.write_bytes(content)
    before = losses(folder)
    done = efficientbench(*words, expect=0)
    assert lines_of(done) == []
    assert f"skipped: {files[0]}: damaged, its SHA-256 is not that of the manifest" in done.stdout
    assert f"resumes after step 2, from {damaged.with_name('checkpoint-2')}" in done.stdout
    assert len(before) == 4
    assert losses(folder) == pytest.approx(before, rel=1e-6)
    assert damaged.with_name("damaged_checkpoint-4").is_dir()
    assert find_good(folder) == (damaged, [])
    assert record(folder)["status"] == "completed"


def test_checkpoints_of_an_earlier_version_are_set_aside_only_on_request(tuned: Path, tmp_path: Path) -> None:
    folder, words = unfinished(tuned, ZERO, tmp_path)
    for each in complete(folder):
        (each / MANIFEST).unlink()
    there = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    (line,) = lines_of(efficientbench(*words, expect=2))
    assert line.startswith(f"error: {newest(folder)}: has no manifest.json, as checkpoints of an earlier version, ")
    assert "--fresh starts anew" in line
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == there


def test_a_flipped_bit_in_any_file_of_a_checkpoint_is_detected(tuned: Path, tmp_path: Path) -> None:
    for run in (ZERO, DDP, FULL):
        folder, _ = unfinished(tuned, run, tmp_path / run[1])
        last = newest(folder)
        for path in [each for each in last.rglob("*") if each.is_file()]:
            whole = path.read_bytes()
            damage(path)
            good, (problem,) = find_good(folder)
            assert good == last.with_name("checkpoint-2")
            assert problem.startswith(f"{path}: damaged")
            path.write_bytes(whole)
        assert find_good(folder) == (last, [])


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (ZERO, "global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt"),
        (DDP, "optimizer.pt"),
        (ZERO, "rng_state_1.pth"),
    ],
)
def test_a_hostile_file_with_a_right_checksum_executes_nothing(
    tuned: Path, tmp_path: Path, run: tuple[str, ...], name: str
) -> None:
    folder, words = unfinished(tuned, run, tmp_path)
    # From its last step none is left, and the random state is not needed.
    shutil.rmtree(newest(folder))
    path, trace = newest(folder) / name, tmp_path / "was_here"
    assert path.is_file()
    torch.save({"state": Touch(trace)}, path)
    rewrite_manifest(newest(folder))
    done = efficientbench(*words)
    assert done.returncode in (1, 2)
    assert "Weights only load failed" in lines_of(done)[0]
    assert not trace.exists()
    # The test itself works: a loader that trusts the file does what it says.
    torch.load(path, weights_only=False)
    assert trace.exists()


def test_deepspeeds_files_of_each_stage_are_plain_data_and_others_are_refused(tuned: Path, tmp_path: Path) -> None:
    from efficientbench.finetuning.deepspeed_files import PlainFiles, read_plain

    for run in (ZERO, FULL):
        found = sorted(newest(tuned / ",".join(run)).rglob("*states.pt"))
        assert len(found) >= 3
        for path in found:
            read_plain(path)
    engine = PlainFiles(None, tmp_path, {"inside.pt"})
    engine.save({"number": 1}, str(tmp_path / "inside.pt"))
    engine.save({"number": 1}, str(tmp_path / "other.pt"))
    assert engine.load(str(tmp_path / "inside.pt")) == {"number": 1}
    for outside in (tmp_path / "other.pt", tmp_path / "inside.pt" / ".." / ".." / "inside.pt"):
        with pytest.raises(CheckpointError, match="refused, the checkpoint's manifest lacks it"):
            engine.load(str(outside))


def test_deepspeeds_enum_of_python_3_11_2_is_read_and_other_getattr_is_refused(tmp_path: Path) -> None:
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from support import enum_pickles

    from efficientbench.finetuning.deepspeed_files import read_plain

    path = tmp_path / "states.pt"
    torch.save({"zero_stage": ZeroStageEnum.weights}, path, enum_pickles)
    assert read_plain(path) == {"zero_stage": ZeroStageEnum.weights}
    # DeepSpeed writes torch's older format.
    for zipped in (True, False):
        torch.save({"zero_stage": Attribute()}, path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(CheckpointError, match="refused, it asks getattr for something else"):
            read_plain(path)
    for content in (b"", b"\x80\x02", pickle.dumps({"a": 1})[:-1], bytes(1000)):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"states.pt: (damaged|refused)"):
            read_plain(path)


class Attribute:
    """Pickled, it asks for what is no member of an enum, by a class that may be named."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        from deepspeed.runtime.zero.config import ZeroStageEnum

        return getattr, (ZeroStageEnum, "__init_subclass__")


def copied_run(tuned: Path, folder: Path) -> Path:
    shutil.copytree(tuned / ",".join(ZERO), folder)
    return folder


def changeable(run: Path) -> dict[str, Any]:
    """The record of a run without its checksum."""
    return {key: value for key, value in record(run).items() if key != "sha256"}


def test_a_damaged_adapter_is_not_merged(tuned: Path, tmp_path: Path) -> None:
    run = copied_run(tuned, tmp_path / "run")
    for path in sorted((run / "adapter").iterdir()):
        whole = path.read_bytes()
        damage(path)
        with pytest.raises(CheckpointError, match=f"{path.name}: damaged"):
            merge(run, tmp_path / "whole")
        path.write_bytes(whole)
    assert not (tmp_path / "whole").exists()


@pytest.mark.parametrize("kind", ["cut", "empty", "binary", "list", "pipe", "zeros", "folder", "loop", "absent"])
@pytest.mark.parametrize("name", [ADAPTER_CONFIG, ADAPTER, MANIFEST])
def test_a_wrong_file_of_an_adapter_is_reported_in_one_message(
    tuned: Path, tmp_path: Path, name: str, kind: str
) -> None:
    run = copied_run(tuned, tmp_path / "run")
    path = run / "adapter" / name
    whole = path.read_bytes()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind in ("zeros", "loop"):
        path.symlink_to("/dev/zero" if kind == "zeros" else path)
    elif kind == "folder":
        path.mkdir()
    elif kind != "absent":
        path.write_bytes({"cut": whole[:-9], "empty": b"", "binary": os.urandom(99), "list": b"[]"}[kind])
    with pytest.raises((CheckpointError, ConfigError), match=name) as told:
        merge(run, tmp_path / "whole")
    assert len(str(told.value).splitlines()) == 1


def test_the_command_refuses_a_damaged_adapter_in_one_line(tuned: Path, tmp_path: Path) -> None:
    run = copied_run(tuned, tmp_path / "run")
    path = run / "adapter" / ADAPTER_CONFIG
    path.write_text(path.read_text()[:-9])
    (line,) = lines_of(efficientbench("finetune", "merge", str(run), str(tmp_path / "whole"), expect=2))
    assert line.startswith(f"error: {path}: damaged, it has ")


def test_base_and_method_come_from_the_record(tuned: Path, tmp_path: Path) -> None:
    run, hostile = copied_run(tuned, tmp_path / "run"), tmp_path / "run" / "adapter" / ADAPTER_CONFIG
    numbers = merge(run, tmp_path / "before")
    config: dict[str, Any] = json.loads(hostile.read_text())
    other = {"base_model_name_or_path": "/somewhere/else", "r": 1, "megatron_core": "this", "megatron_config": {}}
    hostile.write_text(json.dumps(config | other))
    rewrite_manifest(run / "adapter")
    assert merge(run / "adapter", tmp_path / "after") == numbers
    before, after = (tmp_path / name / "model.safetensors" for name in ("before", "after"))
    assert before.read_bytes() == after.read_bytes()
    assert "this" not in sys.modules
    (run / "record.json").write_text(json.dumps(changeable(run) | {"finetuning": {}}))
    with pytest.raises(ConfigError, match="is not the record of a fine-tuning with an adapter"):
        merge(run, tmp_path / "third")


def test_a_checkpoint_a_link_and_a_moved_base_can_be_merged(tuned: Path, tmp_path: Path) -> None:
    run, base = copied_run(tuned, tmp_path / "run"), tmp_path / "moved"
    merge(run, tmp_path / "wanted")
    wanted = (tmp_path / "wanted" / "model.safetensors").read_bytes()
    (tmp_path / "link").symlink_to(run / "adapter")
    content = changeable(run)
    shutil.copytree(content["finetuning"]["base_model"], base)
    content["finetuning"]["base_model"] = str(tmp_path / "gone")
    (run / "record.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"gone cannot be loaded \(.*\): --base FOLDER names where it is$"):
        merge(run, tmp_path / "merged")
    (run / "adapter" / "NOTES.md").write_text("what a user wrote beside it")
    # The last checkpoint has what the training saved at its end.
    for number, named in enumerate([tmp_path / "link", newest(run)]):
        merge(named, tmp_path / str(number), str(base))
    done = efficientbench("finetune", "merge", str(run), str(tmp_path / "2"), "--base", str(base), expect=0)
    assert lines_of(done) == []
    for number in range(3):
        assert (tmp_path / str(number) / "model.safetensors").read_bytes() == wanted
        assert verify(tmp_path / str(number)).holds == "weights"


def test_an_adapter_of_an_earlier_version_is_refused_with_the_way_to_merge_it(tuned: Path, tmp_path: Path) -> None:
    run = copied_run(tuned, tmp_path / "run")
    (run / "adapter" / MANIFEST).unlink()
    with pytest.raises(ConfigError, match=r"adapter/manifest.json: missing, as in adapters of earlier .*PEFT merges"):
        merge(run, tmp_path / "merged")


def test_damaged_models_are_neither_trained_further_nor_imported(tuned: Path, tmp_path: Path) -> None:
    merge(tuned / ",".join(ZERO), tmp_path / "merged")
    shutil.copytree(tuned / ",".join(FULL) / "model", tmp_path / "model")
    for name in ("merged", "model"):
        folder = tmp_path / name
        assert find_model(str(folder), tmp_path) == str(folder)
        damage(folder / "model.safetensors")
        for reads in (find_model, import_folder):
            with pytest.raises(CheckpointError, match=f"{name}/model.safetensors: damaged"):
                reads(*((str(folder), tmp_path) if reads is find_model else (folder, tmp_path / "imported")))
