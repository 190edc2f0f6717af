"""A branch of another run, from the command line: killed and resumed, it is the run of its length."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest
import torch
from support.checkpoints import read_weights
from support.command_line import efficientbench, interrupted, losses, record, steps

from efficientbench.metrics.analysis.stages import device_hours, earlier_stages, training_device_hours
from efficientbench.metrics.records.record import read_record
from efficientbench.training.checkpoints.manifest import checkpoint_folder, complete

pytestmark = pytest.mark.proof
STEP = 128
TRUNK, BRANCH, BEGIN = 300, 200, 160


def test_a_killed_branch_equals_a_run_of_its_length(tiny: tuple[str, ...], tmp_path: Path) -> None:
    drawn, text = random.Random(0), tmp_path / "text.jsonl"
    # Text that the trunk repeats, so that its order is not that of a run as short as the branch.
    documents = (" ".join(str(drawn.randrange(50)) for _ in range(400)) for _ in range(40))
    text.write_text("".join(json.dumps({"text": each}) + "\n" for each in documents))
    data = (f"data.path={text}", "data.split=[9,1,0]", "data.trained_vocab_size=280")
    rates = ("training.lr_schedule=wsd", f"training.lr_warmup_tokens={4 * STEP}", "training.validation_interval=50")
    words = (*tiny, *data, *rates)
    trunk, branch, alone = (tmp_path / f"gqa_1.5B_smoke__{name}" for name in ("trunk", "branch", "alone"))
    efficientbench(
        *(*words, "label=trunk", f"training.steps={TRUNK}", f"checkpoint.at_tokens=[{BRANCH * STEP * 8 // 10}]"),
        expect=0,
    )
    assert checkpoint_folder(trunk, BEGIN) in complete(trunk)
    shorter = (*words, f"training.steps={BRANCH}")
    begun = (
        *shorter,
        "label=branch",
        "checkpoint.interval=5",
        f"init.run={trunk}",
        f"init.step={BEGIN}",
        "init.state=everything",
    )
    done = efficientbench(*begun, "training.seed=7", expect=2)
    assert done.stderr.startswith(f"error: init.state: everything continues {trunk} as it was: training.seed is 1234")
    assert interrupted(branch, begun, signal.SIGKILL, 8) == 1
    killed_after = int(complete(branch)[-1].name.removeprefix("step_"))
    assert BEGIN < killed_after < BRANCH
    done = efficientbench(*begun, expect=0)
    assert f"continues {trunk} after step {BEGIN} (SHA-256 " in done.stdout
    assert f"resumes after step {killed_after}" in done.stdout
    efficientbench(*shorter, "label=alone", f"data.order_tokens={TRUNK * STEP}", expect=0)
    assert losses(branch) == losses(alone)[BEGIN:]
    weights, wanted = (read_weights(checkpoint_folder(folder, BRANCH)) for folder in (branch, alone))
    assert all(torch.equal(weights[key], wanted[key]) for key in wanted)
    found, expected = record(branch), record(alone)
    for figure in (
        "validation_loss",
        "train_loss",
        "tokens_trained",
        "tokens_per_parameter",
        "unique_tokens",
        "epochs",
    ):
        assert found[figure] == expected[figure], figure
    learned = [[(point["tokens"], point["loss"]) for point in each["quality_curve"]] for each in (found, expected)]
    assert learned[0] == learned[1]
    init = found["config"]["init"]
    assert (init["run"], init["step"], init["state"]) == (str(trunk), BEGIN, "everything")
    assert found["config"]["data"]["order_tokens"] == TRUNK * STEP
    assert found["resumed_after_steps"] == [killed_after]
    _counts_its_own_time(branch, trunk)


def _counts_its_own_time(branch: Path, trunk: Path) -> None:
    """The branch's clock began with the branch, and its life has the share of the trunk before it."""
    own, whole = read_record(branch / "record.json"), read_record(trunk / "record.json")
    times = [line["elapsed_s"] for line in steps(branch) if line["kind"] == "step"]
    assert own.wall_s is not None
    assert 0 < times[0] < times[-1] < own.wall_s
    (part,) = earlier_stages(own, branch)
    assert device_hours(part) == pytest.approx(device_hours(whole) * BEGIN / TRUNK)
    assert training_device_hours(part) == pytest.approx(training_device_hours(whole) * BEGIN / TRUNK)
    measured_s = own.tokens / own.tokens_per_s if own.tokens_per_s else 0.0
    share = (BRANCH - BEGIN) * STEP / own.tokens
    assert training_device_hours(own) == pytest.approx(share * measured_s * own.devices / 3600)
