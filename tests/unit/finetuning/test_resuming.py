"""Which checkpoint a fine-tuning resumes from, and what a node writes: without a rank."""

from __future__ import annotations

import socket
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.metrics_parts import make_record

from efficientbench.basics.errors import ConfigError
from efficientbench.devices.cpu import CPU
from efficientbench.finetuning.curriculum.choice import choose_order
from efficientbench.finetuning.curriculum.difficulty import Sample
from efficientbench.finetuning.examples.examples import joined, read_examples
from efficientbench.finetuning.job import TuningJob
from efficientbench.finetuning.load import resolve_tuning
from efficientbench.finetuning.prepare import Prepared
from efficientbench.finetuning.run import FineTuning, PlannedTuning, PreparedTuning
from efficientbench.launchers.network.node_link import NodeLink
from efficientbench.launchers.network.secret import Seal
from efficientbench.metrics.records.record_parts import DataSource
from efficientbench.metrics.records.sinks.steplog import read_steps
from efficientbench.running.kind import Site
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.parent import _write_job
from efficientbench.running.resume import prepare_folder
from efficientbench.training.checkpoints.manifest import seal

EXAMPLES = joined([([1, 2], [False, True])] * 4)


def prepared(folder: OutputFolder, *overrides: str, world: int = 1) -> PreparedTuning:
    """A fine-tuning of four steps, by itself on one rank."""
    config = resolve_tuning("lora_tiny", overrides=["device=cpu", f"output={folder.path.parent}", *overrides])
    order = choose_order(config.curriculum, [Sample(None, "here")] * 4, 4, 1, None)
    data = DataSource("rows.jsonl", 1.0, 4, 8, EXAMPLES.fingerprint, "")
    found = Prepared(None, EXAMPLES, EXAMPLES, np.full(4, -1), order, 4, 0, data, 0, {})
    return PreparedTuning(PlannedTuning(config, Site(CPU(), None, folder), "tiny", world), found)


def save(job: TuningJob, step: int, formula: str) -> Path:
    """A checkpoint as far as the parent process looks at it."""
    folder = job.output / "checkpoint" / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "optimizer.pt").write_bytes(b"of step %d" % step)
    seal(folder, replace(job.manifest(step, "everything", {}), formula=formula))
    return folder


def test_an_update_of_the_formulas_does_not_make_it_start_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = OutputFolder(tmp_path / "lora_tiny")
    folder.path.mkdir()
    tuning, kind = prepared(folder), FineTuning()
    newest = save(kind.job(tuning, folder, 0, None), 2, "efficientllm-2505.13840/1")
    decide = partial(kind.usable, tuning, folder), partial(kind.is_same, tuning)
    assert prepare_folder(folder, *decide, fresh=False) == newest
    assert capsys.readouterr().out == f"resumes after step 2, from {newest}\n"
    assert not (folder.path / "previous").exists()


@pytest.mark.parametrize(("override", "lost_s"), [("checkpoint.interval_s=9", 30.0), ("training.epochs=2", None)])
def test_time_before_a_first_checkpoint_stays_in_the_steps(tmp_path: Path, override: str, lost_s: float | None) -> None:
    folder, kind = OutputFolder(tmp_path / "lora_tiny"), FineTuning()
    folder.path.mkdir()
    kind.job(prepared(folder), folder, 0, None).write(folder.config)
    folder.steps.write_text('{"kind": "step", "step": 1, "elapsed_s": 30.0}\n')
    again = prepared(folder, override)
    decide = partial(kind.usable, again, folder), partial(kind.is_same, again)
    assert prepare_folder(folder, *decide, fresh=False) is None
    found = [line["lost_s"] for line in read_steps(folder.steps)] if folder.steps.exists() else [None]
    assert found == [lost_s]


@pytest.mark.parametrize(
    ("overrides", "world", "reason"),
    [
        ((), 4, "holds checkpoints of 1 rank, and this run has 4"),
        (("training.learning_rate=1e-3",), 1, "of a run that differs in training.learning_rate: --fresh"),
        # A sink changes nothing that is learned.
        (("wandb=trial",), 1, None),
    ],
)
def test_a_checkpoint_fits_its_ranks_and_its_configuration(
    overrides: tuple[str, ...], world: int, reason: str | None, tmp_path: Path
) -> None:
    folder = OutputFolder(tmp_path / "lora_tiny")
    folder.path.mkdir()
    kind = FineTuning()
    newest = save(kind.job(prepared(folder), folder, 0, None), 2, "efficientllm-2505.13840/1")
    other = prepared(folder, *overrides, world=world)
    if reason is None:
        assert kind.usable(other, folder) == newest
    else:
        with pytest.raises(ConfigError, match=reason):
            kind.usable(other, folder)


def test_other_examples_are_told(tmp_path: Path) -> None:
    folder, kind = OutputFolder(tmp_path / "lora_tiny"), FineTuning()
    folder.path.mkdir()
    save(kind.job(prepared(folder), folder, 0, None), 2, "efficientllm-2505.13840/1")
    other = prepared(folder)
    other = replace(other, examples=replace(other.examples, train=joined([([1, 3], [False, True])] * 4)))
    with pytest.raises(ConfigError, match="of a run that differs in its examples: --fresh"):
        kind.usable(other, folder)


@pytest.mark.parametrize(
    ("steps", "told"), [((0,), "6.9752 before"), ((0, 10), "6.9752 before, 6.5000 after 10 steps")]
)
def test_the_loss_afterwards_is_that_of_a_named_step(tmp_path: Path, steps: tuple[int, ...], told: str) -> None:
    """A stopped run has trained on since then, or was not validated at all."""
    held_out = [{"step": step, "loss": loss} for step, loss in zip(steps, (6.9752, 6.5), strict=False)]
    record = make_record({"finetuning": {"held_out": held_out}})
    assert FineTuning().results(record, OutputFolder(tmp_path)) == [f"held-out loss {told}"]


def test_a_node_makes_the_folder_that_it_does_not_see(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path / "of_this_node" / "lora_tiny")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
    own = {0: (there, Seal(b"key", 1, 0))}
    with NodeLink(0, 2, {1: (here, Seal(b"key", 0, 1))}) as first, NodeLink(1, 2, own) as link:
        first.send("prepared")
        job, file = _write_job(FineTuning(), prepared(folder), folder, link, fresh=False)
    assert (file, job.examples.name) == (folder.path / "config_node1.json", "examples_node1.npz")
    assert read_examples(job.examples)[0].fingerprint == EXAMPLES.fingerprint
