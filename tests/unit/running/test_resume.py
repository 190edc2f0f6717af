"""Which checkpoint a run resumes from, or that it starts at step 1: without a rank."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from support.configs import tiny
from support.metrics_parts import make_record

from efficientbench.config.schema import RunConfig
from efficientbench.launchers.processes.failure import Failure
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.records.record import write_record
from efficientbench.metrics.records.sinks.steplog import read_steps
from efficientbench.running.failures import FailureFiles
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.resume import (
    MAY_DIFFER,
    complete_record,
    differences,
    may_not_resume,
    prepare_folder,
    settings,
    usable,
)
from efficientbench.training.checkpoints import manifest
from efficientbench.training.checkpoints.hashing import fingerprint
from efficientbench.training.checkpoints.manifest import Manifest, checkpoint_folder, read_manifest

CONFIG = tiny("gqa_1.5B")
TOKENS = ["of a text", "of another"]


def save(
    run_folder: Path,
    step: int,
    config: RunConfig = CONFIG,
    holds: Literal["everything", "weights"] = "everything",
    formula: str = FORMULAS,
) -> Path:
    """A checkpoint as far as the parent process looks at it."""
    folder = checkpoint_folder(run_folder, step)
    folder.mkdir(parents=True)
    (folder / "tensors").write_bytes(b"of step %d" % step)
    files = {"tensors": fingerprint(folder / "tensors")}
    content = config.model_dump(mode="json")
    Manifest(step, False, holds, content, TOKENS, {}, formula, 0, float(step), None, {}, files).write(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> OutputFolder:
    """A run's folder with checkpoints after steps 2 and 4, and files of the attempt that left them."""
    for step in (2, 4):
        save(tmp_path, step)
    (tmp_path / "steps.jsonl").write_text("{}\n")
    return OutputFolder(tmp_path)


def prepared(folder: OutputFolder, config: RunConfig, data: list[str], fresh: bool) -> Path | None:
    return prepare_folder(
        folder, partial(usable, folder, config, data), lambda earlier: not may_not_resume(earlier, config), fresh
    )


def set_aside(folder: OutputFolder) -> set[str]:
    return {path.name for aside in (folder.path / "previous").glob("*") for path in aside.iterdir()}


def test_a_run_resumes_from_the_newest_checkpoint(folder: OutputFolder, capsys: pytest.CaptureFixture[str]) -> None:
    newest = checkpoint_folder(folder.path, 4)
    partial = newest.with_name(".partial_step_00000006_01234567")
    partial.mkdir()
    write_record(make_record({"status": "failed"}), folder.record)
    assert prepared(folder, CONFIG, TOKENS, fresh=False) == newest
    assert capsys.readouterr().out == f"resumes after step 4, from {newest}\n"
    # What is left of a save, and of the attempt that is over, is gone.
    assert [path.exists() for path in (partial, folder.record, folder.steps)] == [False, False, True]


def test_a_damaged_checkpoint_is_named_and_skipped(folder: OutputFolder, capsys: pytest.CaptureFixture[str]) -> None:
    newest, older = checkpoint_folder(folder.path, 4), checkpoint_folder(folder.path, 2)
    (newest / "tensors").write_bytes(b"of step 5")
    assert prepared(folder, CONFIG, TOKENS, fresh=False) == older
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"skipped: {newest / 'tensors'}: damaged, its SHA-256 is not that of the manifest"
    assert second == f"resumes after step 2, from {older}"
    assert sorted(path.name for path in older.parent.iterdir()) == ["damaged_step_00000004", "step_00000002"]


@pytest.mark.parametrize("older", [True, False])
def test_a_checkpoint_of_the_last_step_without_a_record_is_skipped(
    folder: OutputFolder, older: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever resumed there would train nothing, and record that as a complete run."""
    last = save(folder.path, 6, holds="weights")
    if not older:
        for step in (2, 4):
            shutil.rmtree(checkpoint_folder(folder.path, step))
    found = prepared(folder, CONFIG, TOKENS, fresh=False)
    assert found == (checkpoint_folder(folder.path, 4) if older else None)
    assert capsys.readouterr().out.startswith(f"skipped: {last}: checkpoint of the last step of a run without a")
    assert not last.exists()


@pytest.mark.parametrize("why", ["nothing saved", "fresh", "completed", "differs", "no job"])
def test_the_time_of_attempts_that_saved_nothing_stays_in_the_steps(tmp_path: Path, why: str) -> None:
    folder = OutputFolder(tmp_path)
    for attempt, elapsed_s in enumerate((30.0, 70.0)):
        folder.config.write_text(json.dumps({"config": CONFIG.model_dump(mode="json")}))
        with folder.steps.open("a") as file:
            file.write(json.dumps({"kind": "step", "step": 1, "elapsed_s": elapsed_s}) + "\n")
        if attempt and why == "no job":
            folder.config.write_text("{")
        if attempt and why == "completed":
            write_record(make_record({"status": "completed"}), folder.record)
        config = tiny("gqa_1.5B", "training.learning_rate=1" if attempt and why == "differs" else "checkpoint.keep=7")
        assert prepared(folder, config, TOKENS, fresh=attempt == 1 and why == "fresh") is None
    kept = [{"kind": "lost", "step": 0, "lost_s": 70.0, "elapsed_s": 70.0}]
    assert (read_steps(folder.steps) if folder.steps.exists() else []) == (kept if why == "nothing saved" else [])


@pytest.mark.parametrize("why", ["fresh", "completed", "all damaged", "none"])
def test_a_run_starts_anew_if_fresh_complete_or_without_an_intact_checkpoint(
    folder: OutputFolder, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if why == "completed":
        write_record(make_record({"status": "completed"}), folder.record)
    for step in (2, 4):
        path = checkpoint_folder(folder.path, step) / "manifest.json"
        if why == "all damaged":
            path.write_text("{}")
        elif why == "none":
            path.parent.rename(path.parent.with_name(f".partial_{step}"))
    assert prepared(folder, CONFIG, TOKENS, fresh=why == "fresh") is None
    told = {
        "completed": f"the run in {folder.path} is complete: it moves to previous/, and a new one starts at step 1",
        "fresh": f"the earlier run in {folder.path} moves to previous/, and a new one starts at step 1",
    }
    nothing = f"the earlier run in {folder.path} has no checkpoint to resume from, and moves to previous/"
    assert capsys.readouterr().out.splitlines()[-1] == told.get(why, nothing)
    assert {"steps.jsonl", "checkpoint"} <= set_aside(folder)
    assert not (folder.path / "checkpoint").exists()


def killed_at(rename: int, folder: OutputFolder) -> bool:
    """Set a run aside in a process that kills itself at rename number `rename`; return whether it did."""
    child = os.fork()
    if child == 0:
        renames = itertools.count(1)

        def kill(event: str, arguments: tuple[object, ...]) -> None:
            if event == "os.rename" and next(renames) == rename:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill)
        try:
            folder.set_aside()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_a_complete_run_does_not_resume_after_a_killed_set_aside(tmp_path: Path) -> None:
    for rename in itertools.count(1):
        folder = OutputFolder(tmp_path / str(rename))
        for step in (2, 4):
            save(folder.path, step)
        folder.steps.write_text("{}\n")
        write_record(make_record({"status": "completed"}), folder.record)
        killed = killed_at(rename, folder)
        assert prepared(folder, CONFIG, TOKENS, fresh=False) is None, rename
        if not killed:
            break
    assert rename == 4


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("training.learning_rate=2e-3", "training.learning_rate"),
        ("training.steps=20", "training.steps"),
        ("training.seed=1", "training.seed"),
        ("model.hidden_size=96", "model.embedding_multiplier, model.hidden_size"),
    ],
)
def test_a_checkpoint_of_another_configuration_is_not_resumed(
    folder: OutputFolder, override: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepared(folder, tiny("gqa_1.5B", override), TOKENS, fresh=False) is None
    assert capsys.readouterr().out == f"the earlier run in {folder.path} differs in {named}, and moves to previous/\n"
    assert "checkpoint" in set_aside(folder)


def test_a_run_under_earlier_formulas_is_named_and_not_resumed(
    folder: OutputFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = "efficientllm-2505.13840/1"
    save(folder.path, 6, formula=earlier)
    assert prepared(folder, CONFIG, TOKENS, fresh=False) is None
    told = capsys.readouterr().out
    assert told == (
        f"the earlier run in {folder.path} was trained under the formulas {earlier}, and this program trains under "
        f"{FORMULAS}: it moves to previous/\n"
    )
    assert {"steps.jsonl", "checkpoint"} <= set_aside(folder)


@pytest.mark.parametrize(
    ("path", "tokens", "same"),
    [
        ("[3,/new/a,1,/new/b]", TOKENS, True),
        ("[6,/new/a,2,/new/b]", TOKENS, True),
        ("[1,/new/a,1,/new/b]", TOKENS, False),
        ("[3,/new/b,1,/new/a]", TOKENS[::-1], False),
        ("[3,/new/a,1,/new/b]", ["of a text", "of a third"], False),
    ],
)
def test_a_run_resumes_with_the_same_tokens_in_another_folder(
    folder: OutputFolder, path: str, tokens: list[str], same: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = save(folder.path, 6, tiny("gqa_1.5B", "data.path=[3,/old/a,1,/old/b]"))
    found = prepared(folder, tiny("gqa_1.5B", f"data.path={path}"), tokens, fresh=False)
    told = capsys.readouterr().out
    assert found == (newest if same else None)
    assert told.startswith("data.path: the same tokens" if same else f"the earlier run in {folder.path} differs in")


def test_a_failure_is_reported_without_reading_the_tensors_of_checkpoints(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise AssertionError(f"{path} is read while a scheduler waits")

    monkeypatch.setattr(manifest, "fingerprint", refuse)
    FailureFiles(folder).write(Failure("stopped", "asked to", 143))
    newest, older = checkpoint_folder(folder.path, 4), checkpoint_folder(folder.path, 2)
    assert json.loads(folder.failure.read_text())["checkpoint"] == str(newest)
    (newest / "tensors").write_bytes(b"cut")
    FailureFiles(folder).write(Failure("stopped", "asked to", 143))
    assert json.loads(folder.failure.read_text())["checkpoint"] == str(older)


def test_a_users_mistake_does_not_advise_to_resume(folder: OutputFolder, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, told in (("mistake", False), ("crash", True)):
        FailureFiles(folder).write(Failure(kind, "because"))
        assert ("run the same command again to resume" in capsys.readouterr().err) == told


EARLIER = ("training.optimizer", "evaluation.core_every", "evaluation.core_limit", "model.moe.auxiliary_over")
"""Keys that older configurations lack."""


def without_keys(content: dict[str, Any]) -> dict[str, Any]:
    def without(keys: dict[str, Any], before: str) -> dict[str, Any]:
        return {
            key: without(value, f"{before}{key}.") if isinstance(value, dict) else value
            for key, value in keys.items()
            if f"{before}{key}" not in EARLIER
        }

    return without(content, "")


@pytest.mark.parametrize(
    ("name", "override", "goes_on"),
    [
        ("gqa_1.5B", (), True),
        ("gqa_1.5B", ("training.optimizer=muon",), False),
        ("moe_1.5Bx8", (), True),
        ("moe_1.5Bx8", ("model.moe.auxiliary_over=global",), False),
    ],
)
def test_a_run_older_than_a_key_resumes_and_stays_complete(
    tmp_path: Path, name: str, override: tuple[str, ...], goes_on: bool
) -> None:
    newest = save(tmp_path, 4, tiny(name))
    written = read_manifest(newest)
    (newest / "manifest.json").unlink()
    replace(written, config=without_keys(written.config)).write(newest)
    config = tiny(name, *override)
    assert prepared(OutputFolder(tmp_path), config, TOKENS, fresh=False) == (newest if goes_on else None)
    old = without_keys(tiny(name).model_dump(mode="json"))
    facts = {"status": "completed", "device_name": "a CPU", "formula_id": FORMULAS, "config": old}
    write_record(make_record(facts), tmp_path / "record.json")
    size = config.training.micro_batch_size
    assert (complete_record(OutputFolder(tmp_path), config, size, "a CPU") is not None) == goes_on


def test_a_batch_given_in_tokens_is_the_same_run(folder: OutputFolder) -> None:
    training = CONFIG.training
    in_tokens = tiny("gqa_1.5B", f"total_batch_size={training.global_batch_size * training.seq_len}")
    newest = checkpoint_folder(folder.path, 4)
    assert prepared(folder, in_tokens, TOKENS, fresh=False) == newest
    facts = {"status": "completed", "device_name": "a CPU", "formula_id": FORMULAS}
    write_record(make_record({**facts, "config": CONFIG.model_dump(mode="json")}), folder.record)
    assert complete_record(folder, in_tokens, training.micro_batch_size, "a CPU") is not None


def test_settings_that_may_differ_do_not_prevent_a_resume() -> None:
    other = tiny(
        "gqa_1.5B",
        *("output=elsewhere", "data.cache=elsewhere", "wandb=trial", "parallel.tp=2"),
        "parallel.distributed_optimizer=false",
        *("training.micro_batch_size=1", "checkpoint.interval=7", "faults.skip_non_finite_steps=3"),
    )
    before, now = (settings(config.model_dump(mode="json"), MAY_DIFFER) for config in (CONFIG, other))
    assert differences(before, now) == []


@pytest.mark.parametrize(
    ("overrides", "device_name", "smaller", "kept"),
    [
        ((), "a CPU", False, True),
        (("output=elsewhere", "data.cache=elsewhere", "wandb=trial"), "a CPU", False, True),
        (("parallel.tp=2",), "a CPU", False, False),
        (("checkpoint.interval=7",), "a CPU", False, False),
        ((), "another CPU", False, False),
        (("training.micro_batch_size=4",), "a CPU", False, False),
        (("training.micro_batch_size=4",), "a CPU", True, True),
    ],
)
def test_a_complete_record_is_kept_only_for_the_same_layout_and_device(
    tmp_path: Path, overrides: tuple[str, ...], device_name: str, smaller: bool, kept: bool
) -> None:
    """A measurement on another layout is another measurement, unlike a resumed attempt."""
    recorded = tiny("gqa_1.5B").model_dump(mode="json")
    if smaller:
        recorded["training"] |= {"micro_batch_size": 1, "micro_batch_size_asked": 4}
    facts = {"status": "completed", "device_name": "a CPU", "formula_id": FORMULAS, "config": recorded}
    write_record(make_record(facts), tmp_path / "record.json")
    config = tiny("gqa_1.5B", *overrides)
    size = config.training.micro_batch_size
    assert (complete_record(OutputFolder(tmp_path), config, size, device_name, smaller) is not None) == kept
