"""Check a variant by real runs: layouts, recomputation, and a run that resumes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from efficientbench.basics.errors import ConfigError
from efficientbench.config.combination_table import problems
from efficientbench.config.load import resolve
from efficientbench.doctor.check import Check
from efficientbench.doctor.variant.cases import BASE, LAYOUTS, overrides_of
from efficientbench.launchers.processes.worker_process import module_command
from efficientbench.metrics.records.sinks.steplog import read_steps
from efficientbench.running.output_folder import OutputFolder
from efficientbench.training.checkpoints.manifest import checkpoint_folder

ROUNDING = 1e-5
"""Largest relative difference of a loss that the order of sums explains."""
SAVED_AFTER = 3
"""Steps before the checkpoint from which a run resumes."""
TIME_LIMIT_S = 600

TOGETHER = (("pipeline", "interleaved pipeline"), ("data parallel", "full recomputation"))
"""Layouts that one run checks together. Where it is refused or wrong, each layout gets a run of its own."""


def run_checks(words: Sequence[str], folder: Path) -> Iterator[Check]:
    """Run the model on one rank, then in every layout that it can have, and compare the losses of all steps.

    Args:
        words: the overrides of BASE's smoke run.
        folder: the folder that the runs write to.
    """
    shared = (*words, f"output={folder}", f"data.cache={folder / 'data'}", f"checkpoint.interval={SAVED_AFTER}")
    single = (*shared, "label=single", "parallel.dp=1")
    wanted = _losses(single)
    if isinstance(wanted, str):
        yield Check("a run", False, wanted)
        return
    yield Check("a run", True, f"{len(wanted)} steps, losses {wanted[0]:.4f} to {wanted[-1]:.4f}")
    yield _resumption(single, wanted)
    shown: set[str] = set()
    for names in (*TOGETHER, *((name,) for name in LAYOUTS)):
        if not shown.issuperset(names):
            check = _layout(names, shared, wanted)
            if len(names) == 1 or check.passed:
                shown.update(names)
                yield check


def _layout(names: Sequence[str], shared: Sequence[str], wanted: list[float]) -> Check:
    """Run the model once in these layouts of LAYOUTS together."""
    keys = {key: value for name in names for key, value in LAYOUTS[name].items()}
    refused = problems(resolve(BASE, smoke=True, overrides=shared), keys)
    if refused:
        return Check(", ".join(names), len(names) == 1, f"refused: {ConfigError(refused)}")
    label = "_and_".join(names).replace(" ", "_")
    good = f"losses of one rank in all {len(wanted)} steps"
    return _same(", ".join(names), _losses((*shared, f"label={label}", *overrides_of(keys))), wanted, good)


def _resumption(overrides: Sequence[str], wanted: list[float]) -> Check:
    """Remove the record and the last checkpoint of the completed run, and run it again: it must resume."""
    folder = OutputFolder.of(resolve(BASE, smoke=True, overrides=overrides))
    folder.record.unlink()
    shutil.rmtree(checkpoint_folder(folder.path, len(wanted)))
    return _same("checkpoint", _losses(overrides), wanted, f"resumed after step {SAVED_AFTER} with the same losses")


def _same(name: str, found: list[float] | str, wanted: list[float], good: str) -> Check:
    if isinstance(found, str):
        return Check(name, False, found)
    distances = [abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=False)]
    worst = max(distances, default=0.0)
    if len(found) != len(wanted):
        return Check(name, False, f"{len(found)} steps instead of {len(wanted)}")
    step = distances.index(worst) + 1
    return Check(name, worst < ROUNDING, good if worst < ROUNDING else f"step {step} differs by {worst:.1e}")


def _losses(overrides: Sequence[str]) -> list[float] | str:
    """Run, and return the loss of every step, or the last line that a failed run printed."""
    command = module_command("efficientbench.cli", "run", BASE, "--smoke", *overrides)
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return lines[-1] if lines else f"exit code {done.returncode}"
    folder = OutputFolder.of(resolve(BASE, smoke=True, overrides=overrides))
    return [line["loss"] for line in read_steps(folder.steps) if line["kind"] == "step"]
