"""Fine-tunings of two ranks each, forked from one process that has imported the libraries, which takes longest.

    python -m support.tuned_in_forks CACHE OUTPUT NAME[,key=value...] ...

Each trains in OUTPUT/<what is named>. `from=STEP` trains it again there, from that step's checkpoint, and leaves the
first training's steps in `whole.jsonl`. `diverged` lets
rank 1 read two steps in another order, of which both ranks must find out.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

# Before DeepSpeed is imported, which looks for accelerators.
os.environ |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}

import deepspeed  # noqa: E402, F401
import peft  # noqa: E402, F401
import trl  # noqa: E402

from efficientbench.devices.registry import find_device  # noqa: E402
from efficientbench.finetuning.base_model import find_model  # noqa: E402
from efficientbench.finetuning.examples.examples import read_examples, write_examples  # noqa: E402
from efficientbench.finetuning.examples.rows import read_rows  # noqa: E402
from efficientbench.finetuning.job import TuningJob  # noqa: E402
from efficientbench.finetuning.load import resolve_tuning  # noqa: E402
from efficientbench.finetuning.run import FineTuning, PlannedTuning  # noqa: E402
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter  # noqa: E402
from efficientbench.running.kind import Site  # noqa: E402
from efficientbench.running.output_folder import OutputFolder  # noqa: E402
from efficientbench.running.rank_process import Rank  # noqa: E402
from efficientbench.training.checkpoints.manifest import set_damaged_aside  # noqa: E402

_ = trl.SFTTrainer


def train(jobs: list[TuningJob], expected: list[int]) -> None:
    """Run the job of each rank; raises where one ends with another exit code than expected."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    pids = [_forked(job, rank) for rank, job in enumerate(jobs)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    if codes != expected:
        raise SystemExit(f"{jobs[0].output.name}: the ranks ended with {codes}")


class Noted(HeartbeatWriter):
    """Writes each phase into a file besides."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._noted = path

    def at(self, step: int, phase: str) -> None:
        super().at(step, phase)
        with self._noted.open("a", encoding="utf-8") as file:
            file.write(f"{step}: {phase}\n")


def _forked(job: TuningJob, rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
        from efficientbench.finetuning.rank import tune_rank

        stopped = tune_rank(job, Rank(rank, rank, Noted(job.output / f"phases_{rank}.txt"), lambda: False))
        code = int(stopped)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _steps_swapped(job: TuningJob) -> Path:
    """Write the job's examples with its first two steps in the other order, and return the file."""
    train, held_out, order, levels = read_examples(job.examples)
    steps = order.reshape(job.steps, -1)
    steps[[0, 1]] = steps[[1, 0]]
    other = job.examples.with_name("examples_swapped.npz")
    write_examples(other, train, held_out, order, levels)
    return other


def main(cache: str, output: Path, runs: list[str]) -> None:
    """Train each run on a few examples, which are read and tokenized fast."""
    output.mkdir(parents=True, exist_ok=True)
    few = [{"messages": row.messages} for row in read_rows(None, "difficulty", ("one",))[:160]]
    (output / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in few))
    for run in runs:
        name, *overrides = run.split(",")
        words = [word for word in overrides if not word.startswith("from=") and word != "diverged"]
        begins = [word.removeprefix("from=") for word in overrides if word.startswith("from=")]
        folder = OutputFolder(output / ",".join([name, *words]))
        config = resolve_tuning(
            name, overrides=[*words, f"cache={cache}", "device=cpu", f"data.path={output / 'rows.jsonl'}"]
        )
        if begins:
            resume = folder.path / "checkpoint" / f"checkpoint-{begins[0]}"
            # As a run does that passes over damaged ones.
            set_damaged_aside(folder.path, resume)
            folder.steps.with_name("whole.jsonl").write_bytes(folder.steps.read_bytes())
            job = replace(TuningJob.read(folder.config), resume=resume)
            train([job, job], [0, 0])
            continue
        model = find_model(config.model, Path(cache))
        folder.log.mkdir(parents=True, exist_ok=True)
        site = Site(find_device(config.device), None, folder)
        assert site.device.type == "cpu"
        prepared = FineTuning().prepare(PlannedTuning(config, site, model, world=2))
        job = FineTuning().job(prepared, folder, node=0, resume=None)
        job.write(folder.config)
        if "diverged" in overrides:
            train([job, replace(job, examples=_steps_swapped(job))], [1, 1])
        else:
            train([job, job], [0, 0])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
