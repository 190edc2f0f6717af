"""`training.objective=rl` through the command line: what it records, a run that was killed, rewards that fail."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replicas import made_up_meter
from support.command_line import ROOT, TINY, Finished, efficientbench, failure, record, steps
from support.conversation_pairs import VOCABULARY, write_conversations
from support.outside_rewards import write_questions

from efficientbench.metrics.records.record import read_record
from efficientbench.training.checkpoints.manifest import complete, find_good, verify

STEPS, SAMPLES, QUESTIONS = 8, 2, 2
MINE = """
import os, pathlib, signal, sys, time

asked = []

def kill_at_update(frame, event, argument):
    # The step takes its micro-batches: all answers are there, and it has learned from none.
    if event == "call" and frame.f_code.co_name == "training_step":
        os.kill(os.getpid(), signal.SIGKILL)

def length(example, completion):
    asked.append(example)
    killed = pathlib.Path(__file__).with_name("killed")
    # The last answer of step 6.
    if len(asked) == 6 * 4 and not killed.exists():
        killed.touch()
        sys.setprofile(kill_at_update)
    return len(completion)

def faulty(example, completion):
    asked.append(example)
    return 1.0 if len(asked) < 8 else float("nan")

def plain(example, completion):
    return len(completion)

def slow(example, completion):
    asked.append(example)
    # In the first step.
    time.sleep(2.5 * (len(asked) <= 4))
    return len(completion)

def filling(example, completion):
    asked.append(example)
    if len(asked) == 6 * 4:
        with open(os.environ["FILLER"], "wb", 0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
    return len(completion)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pair, questions, test questions and a module of rewards."""
    folder = tmp_path_factory.mktemp("data")
    write_conversations(folder, 60)
    write_questions(folder / "questions.jsonl", 5)
    write_questions(folder / "gsm8k.jsonl", 6)
    return folder


@pytest.fixture
def mine(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A folder with rewards of one's own, and the environment in which they are found."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "my_rewards.py").write_text(MINE)
    return folder, {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}


def asked(data: Path, *overrides: str) -> tuple[str, ...]:
    return (
        *("training.objective=rl", f"model.vocab_size={VOCABULARY}", "data.split=[9,1,0]", f"training.steps={STEPS}"),
        *(f"data.path={data / 'chat'}", f"rl.questions={data / 'questions.jsonl'}", "checkpoint.interval=4"),
        *(f"rl.samples={SAMPLES}", "rl.max_new_tokens=8"),
        *overrides,
    )


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Those of `steps.jsonl`, without what no two runs have in common."""
    measured = ("step_time_s", "elapsed_s", "time_s", "power_w", "memory_used_bytes", "measured")
    return [
        {name: value for name, value in line.items() if name not in measured}
        for line in steps(folder)
        if line["kind"] == kind
    ]


def results(path: Path) -> dict[str, dict[str, Any]]:
    return {line["item"]: line for line in map(json.loads, path.read_text().splitlines()[1:])}


@pytest.mark.proof
def test_the_record_has_separate_figures_of_rollouts_and_updates(train: Callable[..., Finished], data: Path) -> None:
    tested = ("rl.test_every=4", f"rl.test_questions={data / 'gsm8k.jsonl'}", "rl.test_limit=4", "rl.test_samples=2")
    run = train(*asked(data, *tested))
    assert run.done.returncode == 0, run.done.stderr
    assert "5 questions of gsm8k, 2 in a step with 2 answers each" in run.done.stdout
    content = record(run.folder)
    assert read_record(run.folder / "record.json").reinforcement is not None
    found, sampled = content["reinforcement"], [line for line in steps(run.folder) if line["kind"] == "rollouts"]
    assert [line["step"] for line in sampled] == list(range(1, STEPS + 1))
    # An untrained model is right nowhere: each question is without signal, and nothing is learned.
    counts = found["questions"], found["without_signal"], found["too_long"], found["reward_last"]
    assert counts == (STEPS * QUESTIONS, STEPS * QUESTIONS, 0, 0)
    assert "16 of 16 questions had no signal" in run.done.stdout
    assert {line["loss"] for line in lines(run.folder, "step")} == {0}
    # The first step is warm-up.
    assert found["rollouts"]["tokens"] == sum(line["tokens"] for line in sampled[1:])
    assert found["rollouts"]["time_s"] == pytest.approx(sum(line["time_s"] for line in sampled[1:]))
    assert found["updates"]["tokens"] == content["tokens"]
    measured = [line["step_time_s"] for line in steps(run.folder) if line["kind"] == "step" and line["measured"]]
    assert found["updates"]["time_s"] == pytest.approx(sum(measured))
    for phase in ("rollouts", "updates"):
        assert (found[phase]["energy_j"] is None) == ("energy_j" in content["unavailable"])
        assert (found[phase]["energy_j"] is None) == bool(found[phase]["energy_unavailable"])
    assert content["validation_loss"] is not None
    # Its epochs are not those of the conversations that it only validates on.
    assert content["unavailable"]["epochs"].startswith("reinforcement learning reads no text")
    # What `evaluate` finds in the checkpoint.
    words = ("--tasks", "gsm8k", "--data", str(data), "--limit", "4", "--samples", "2", "--temperature", "1.0")
    efficientbench("evaluate", str(run.folder), *words, "--max-new-tokens", "8", "--step", "4", expect=0)
    during = results(run.folder / "evaluation" / "training" / "gsm8k_00000004.jsonl")
    later = results(run.folder / "evaluation" / "gsm8k.jsonl")
    assert len(later) == 4
    assert {name: each["samples"] for name, each in during.items()} == {
        name: each["samples"] for name, each in later.items()
    }
    summary = json.loads((run.folder / "evaluation" / "training" / "gsm8k_00000008.json").read_text())
    assert summary["figures"].keys() == {"accuracy", "pass_at_1", "pass_at_2"}
    assert "step 4: accuracy 0.0000, pass_at_1 0.0000" in run.done.stdout
    assert [(each["task"], each["step"]) for each in content["training_scores"]] == [("gsm8k", 4), ("gsm8k", 8)]


@pytest.mark.proof
@pytest.mark.parametrize(
    ("spends", "other", "times"), [("rollouts", "updates", QUESTIONS * SAMPLES), ("updates", "rollouts", 1)]
)
def test_joules_of_rollouts_and_updates_do_not_overlap(
    spends: str, other: str, times: int, tiny: tuple[str, ...], folder: Path, data: Path, tmp_path: Path
) -> None:
    words = (*tiny, *asked(data, "rl.reward=replicas.made_up_meter:length"))
    efficientbench(*words, expect=0, **made_up_meter.lay_out(tmp_path, spends))
    content = record(folder)
    found = content["reinforcement"]
    # The first step is warm-up. What is read a little outside of a window is scaled to its length.
    assert 0 < found[spends]["energy_j"] <= made_up_meter.SPENT_J * times * (STEPS - 1)
    assert found[spends]["energy_unavailable"] is None
    assert found[other]["energy_j"] is None
    assert "the meter stood still" in found[other]["energy_unavailable"]
    # All other figures are those of the updates.
    assert content["energy_j"] == found["updates"]["energy_j"]


@pytest.mark.proof
def test_a_run_killed_between_rollouts_and_update_resumes_identically(
    tiny: tuple[str, ...], folder: Path, data: Path, mine: tuple[Path, dict[str, str]]
) -> None:
    place, environment = mine
    words = (*tiny, *asked(data, "rl.reward=my_rewards:length"))
    killed = efficientbench(*words, **environment)
    assert killed.returncode == 1
    assert (place / "killed").exists()
    # The answers of step 6 are there, the step itself is not.
    assert (len(lines(folder, "rollouts")), len(lines(folder, "step"))) == (6, 5)
    module = place / "my_rewards.py"
    module.write_text(f"{MINE}# worth more")
    refused = efficientbench(*words, expect=2, **environment)
    assert "the run was trained on other questions or rewards" in refused.stderr
    module.write_text(MINE)
    # Answers depend on no batch.
    efficientbench(*words, "rl.batch=1", expect=0, **environment)
    resumed = lines(folder, "rollouts"), lines(folder, "step"), record(folder)
    assert resumed[2]["resumed_after_steps"] == [4]
    # Not killed, since it was.
    efficientbench(*words, "--fresh", expect=0, **environment)
    assert (lines(folder, "rollouts"), lines(folder, "step")) == resumed[:2]
    whole = record(folder)
    for name in ("questions", "without_signal", "reward_first", "reward_last"):
        assert resumed[2]["reinforcement"][name] == whole["reinforcement"][name]
    assert whole["validation_loss"] == resumed[2]["validation_loss"]
    assert any(line["reward"] > 0 for line in resumed[0])


@pytest.mark.proof
@pytest.mark.parametrize("replicas", [1, 2])
def test_an_invalid_reward_names_the_questions_row_and_the_answer(
    replicas: int, tiny: tuple[str, ...], folder: Path, data: Path, mine: tuple[Path, dict[str, str]]
) -> None:
    # The first checkpoint is of step 1, and a rank's eighth answer the second one to a question of a later step.
    words = asked(data, "rl.reward=my_rewards:faulty", "checkpoint.interval=1", f"parallel.dp={replicas}")
    done = efficientbench(*tiny, *words, expect=2, **mine[1])
    assert re.search(
        r"reward my_rewards:faulty returned nan at \S+\.jsonl:\d+, answer 2: '.*': it must return a finite number",
        done.stderr,
    )
    assert "Traceback" not in done.stderr
    assert failure(folder)["kind"] == "mistake"
    assert complete(folder)


@pytest.mark.proof
def test_slow_rewards_are_no_hang(
    tiny: tuple[str, ...], folder: Path, data: Path, mine: tuple[Path, dict[str, str]]
) -> None:
    # Those of the step together take longer than the limit.
    words = asked(data, "rl.reward=my_rewards:slow", "training.steps=4", "faults.hang_limit_s=8")
    efficientbench(*tiny, *words, expect=0, **mine[1])
    assert record(folder)["status"] == "completed"


@pytest.mark.proof
def test_a_disk_that_fills_during_rollouts_loses_no_checkpoint(
    tiny: tuple[str, ...],
    data: Path,
    mine: tuple[Path, dict[str, str]],
    small_disk: Callable[[int], Path],
) -> None:
    disk = small_disk(100_000)
    words = (*tiny, *asked(data, "rl.reward=my_rewards:filling"), f"output={disk}")
    filler, folder = disk / "filler", disk / "gqa_1.5B_smoke"
    done = efficientbench(*words, expect=2, FILLER=str(filler), **mine[1])
    assert "o space left" in done.stderr
    good = find_good(folder)[0]
    assert good is not None
    assert verify(good).step == 4
    assert f"last good checkpoint: {good}" in done.stderr
    filler.unlink()
    again = efficientbench(*words, expect=0, FILLER=str(filler), **mine[1])
    assert "resumes after step 4" in again.stdout
    assert [line["step"] for line in lines(folder, "rollouts")] == list(range(1, STEPS + 1))


@pytest.mark.proof
def test_an_external_task_asks_and_rewards_in_a_run(tiny: tuple[str, ...], folder: Path, data: Path) -> None:
    outside = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    task = ("rl.task=support.outside_task:Plain", "rl.questions=null")
    done = efficientbench(*tiny, *asked(data, *task), expect=0, **outside)
    assert "5 questions of support.outside_task:Plain, 2 in a step with 2 answers each" in done.stdout
    found, code = record(folder)["reinforcement"], ROOT / "tests" / "support" / "outside_task.py"
    # By its score every answer would be worth 0.
    assert 0 < found["reward_first"] < 1
    assert found["without_signal"] < found["questions"] == STEPS * QUESTIONS
    assert found["files_sha256"] == [hashlib.sha256(code.read_bytes()).hexdigest()]
    missing = ("rl.task=support.outside_task:Missing", "rl.questions=null")
    refused = efficientbench(*tiny, *asked(data, *missing), expect=2, **outside)
    assert "support.outside_task has no Missing" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.proof
def test_a_sweep_over_optimizers_learns_from_rewards_and_compares_them(
    tmp_path: Path, cache: str, data: Path, mine: tuple[Path, dict[str, str]]
) -> None:
    words = ("--only", "gqa_1.5B", "--smoke", f"output={tmp_path / 'runs'}", f"data.cache={cache}", *TINY)
    axis = ("--set", "training.optimizer=adamw,muon")
    efficientbench("sweep", *words, *asked(data, "rl.reward=my_rewards:plain"), *axis, expect=0, **mine[1])
    folders = [tmp_path / "runs" / f"gqa_1.5B_smoke__optimizer={name}" for name in ("adamw", "muon")]
    records = [record(folder) for folder in folders]
    updated = [{group["role"]: group["optimizer"] for group in each["parameter_groups"]} for each in records]
    assert [each["matrices"] for each in updated] == ["adamw", "muon"]
    assert [each["others"] for each in updated] == ["adamw", "adamw"]
    # The same weights answer the first questions, and others after the first update.
    first, second = (lines(folder, "rollouts") for folder in folders)
    assert (len(first), len(second)) == (STEPS, STEPS)
    assert first[0] == second[0]
    losses = [[line["loss"] for line in lines(folder, "step")] for folder in folders]
    assert losses[0][0] == losses[1][0]
    assert losses[0][1:] != losses[1][1:]
    report = (tmp_path / "runs" / "report.md").read_text(encoding="utf-8")
    for title in ("Optimizers beside each other", "Rewards, and what sampling answers took"):
        assert f"## {title}\n" in report
    despite = ("--despite", "optimizer,layout")
    compared = efficientbench("compare", *map(str, folders), *despite, expect=0).stdout
    assert "despite a different optimizer: adamw against muon" in compared
    assert "rollout tokens/s" in compared
    # Whoever reads a run's folder does not import what its command named.
    asked_for = ("--prompt", "1?", "--max-new-tokens", "2", "--weights", "int8")
    told = efficientbench("generate", str(folders[1]), *asked_for, expect=0)
    assert "weights: int8 by " in told.stderr
    refused = efficientbench("compare", *map(str, folders), expect=2).stderr
    assert "optimizer: adamw against muon" in refused
    # How long the answers are is the runs' own.
    assert "tokens:" not in refused


def test_an_unknown_reward_is_refused(tiny: tuple[str, ...], folder: Path, data: Path) -> None:
    done = efficientbench(*tiny, *asked(data, "rl.reward=nowhere_at_all:f"), expect=2)
    assert "reward nowhere_at_all:f: there is no module nowhere_at_all" in done.stderr
    assert "Traceback" not in done.stderr
    assert not folder.exists() or not (folder / "record.json").exists()
