"""Run the steps of a pipeline one after the other, up to the first that fails."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from efficientbench.basics.errors import ConfigError
from efficientbench.basics.files import disk_errors_explained, exclusive_lock, write_file
from efficientbench.devices.registry import device_called, find_device
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.processes.failure import STOP_EXIT_CODES
from efficientbench.launchers.processes.launch import received_signals
from efficientbench.launchers.processes.worker_process import module_command
from efficientbench.running.micro_batch import decide_together
from efficientbench.speedrun.check import check_runs, check_texts
from efficientbench.speedrun.request import Request, check_choices, keep_choices
from efficientbench.speedrun.steps import DATA_TOOLS, TOOLS, Kind, Step, make_pipeline
from efficientbench.sweep.child import stop_with_parent

MODULES = {TOOLS: "efficientbench.cli", DATA_TOOLS: "efficientbench.data_tools"}
"""Program → the module that it runs."""
POLL_S = 0.2
"""Seconds between two looks at a command. Runs are measured meanwhile, so this process must take no CPU time."""


def device_type(name: str) -> str:
    """Return the device type called `name`; for `auto` the first accelerator that can be used, else the CPU.

    Raises DeviceError: there is no such type.
    """
    # The first step finds out whether a named device can be used, and reports more.
    return find_device().type if name == "auto" else device_called(name).type


def speedrun(request: Request, dry_run: bool = False) -> int:
    """Run the steps of a pipeline that are not complete; return the exit code of the first that fails, else 0.

    Args:
        request: the request for the pipeline.
        dry_run: print the commands, and run none. Only the files that name the runs are written, and how texts that are
            tokenized already are split.

    Raises:
        ConfigError: the request or the run of any stage has a mistake, or the folder was made from other data.
        DataError: the folder, or a mixture, is damaged.
        DeviceError, LaunchError, MetricsError: as `find_site` of each run.
    """
    request.check()
    try:
        request.work.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(request.work / "lock"):
            pipeline = make_pipeline(request)
            if dry_run or not all(step.left_out or step.complete for step in pipeline.steps):
                check_runs(request, pipeline.runs)
            check_choices(request)
    except OSError as error:
        raise _not_written(request, error) from None
    node = Cluster.from_environment(os.environ).node_rank if request.mode == "dlc" else 0
    if dry_run:
        for number, step in enumerate(pipeline.steps, start=1):
            announce(step, number, len(pipeline.steps))
        check_texts(request, pipeline.runs)
        return 0

    def checked() -> None:
        # Not before: a folder of which a machine can make nothing is free for another text.
        try:
            with exclusive_lock(request.work / "lock"):
                keep_choices(request)
        except OSError as error:
            raise _not_written(request, error) from None

    def before_training() -> None:
        check_texts(request, pipeline.runs)
        # Else the first run would decide for itself alone, and a later one could not use its size.
        decide_together(pipeline.runs, request.mode)

    if code := perform(pipeline.steps, request.work, node, checked, before_training):
        return code
    print(f"\nreports: {request.work / 'runs'}, of all stages report_card.md", flush=True)
    for folder in pipeline.chat:
        print(f"\n{folder}: talk with it")
        if sys.prefix != sys.base_prefix and "VIRTUAL_ENV" not in os.environ:
            # The script that called this has set PATH for itself alone.
            print(f"  source {shlex.quote(f'{sys.prefix}/bin/activate')}")
        print(f"  efficientbench chat {shlex.quote(str(folder))}")
        print(f"  efficientbench serve {shlex.quote(str(folder))}", flush=True)
    return 0


def _not_written(request: Request, error: OSError) -> ConfigError:
    return ConfigError(f"--work {request.work}: cannot be written: {error.strerror}")


def perform(
    steps: Sequence[Step],
    work: Path,
    node: int = 0,
    checked: Callable[[], None] | None = None,
    before_training: Callable[[], None] | None = None,
) -> int:
    """Run each step that is not complete; return the exit code of the first that fails, else 0.

    Stop signals go to the running command, which saves and ends; no further command starts.

    Args:
        steps: the steps, in their order.
        work: the folder whose lock lets one node at a time prepare.
        node: the number of this node among those that share the folder; 0 where it is alone.
        checked: called once the machine is checked, before the first step that makes something; None: nothing.
        before_training: called before the first run that is not complete, when all texts are tokenized; None: nothing.

    Raises:
        ConfigError, LaunchError: as `checked` and `before_training`.
        DataError: the mark of a complete step cannot be written.
    """
    for number, step in enumerate(steps, start=1):
        if step.kind is Kind.MEASURE and node > 0:
            continue
        if step.kind is not Kind.CHECK and checked is not None:
            checked()
            checked = None
        if step.kind is Kind.TRAIN and before_training is not None and not step.complete:
            before_training()
            before_training = None
        lock = exclusive_lock(work / "lock") if step.kind is Kind.PREPARE else contextlib.nullcontext()
        with lock:
            announce(step, number, len(steps))
            code = 0 if step.left_out or step.complete else _run(step)
        if code in STOP_EXIT_CODES.values():
            print("stopped: the same command resumes the speedrun", file=sys.stderr)
            return code
        if code:
            print(f"error: {step.name}: {_hint(step)}", file=sys.stderr)
            return code
    return 0


def announce(step: Step, number: int, count: int) -> None:
    """Print a step's name, and its command or why none runs."""
    state = f": skipped: {step.left_out}" if step.left_out else ": complete" if step.complete else ""
    print(f"== {number} of {count}, {step.name}{state}", flush=True)
    if not state:
        print(f"   {shlex.join(step.command)}", flush=True)


def _run(step: Step) -> int:
    """Run a step's command to its end, and write its mark; return the exit code as a shell gives it."""
    program, *words = step.command
    with received_signals() as signals:
        # A session of its own: Ctrl-C reaches it once, through this process.
        child = subprocess.Popen(
            module_command(MODULES[program], *words),
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=stop_with_parent,
        )
        sent = 0
        while child.poll() is None:
            for number in signals[sent:]:
                sent += 1
                child.send_signal(number)
            time.sleep(POLL_S)
    if signals:
        return STOP_EXIT_CODES[signal.Signals(signals[0])]
    code = child.returncode if child.returncode >= 0 else 128 - child.returncode
    if code == 0 and step.made is not None and step.mark is not None and (mark := step.mark()) is not None:
        with disk_errors_explained(step.made.parent):
            write_file(step.made, mark.encode())
    return code


def _hint(step: Step) -> str:
    if step.kind is Kind.CHECK:
        return (
            "this machine does not pass the check above, so nothing was trained; on Ascend bash "
            "launchers/fix_ascend_env.sh prints more, and --device cpu runs a short one here"
        )
    resumes = "failed; what is complete stays, and the same command resumes the speedrun"
    if "download" in step.command:
        return f"{resumes}; --smoke, in another --work, needs no network"
    return resumes
