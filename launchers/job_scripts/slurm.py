"""Writes the script for `sbatch`: one launcher on each node, in a job that resumes after it was stopped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from efficientbench.basics.errors import LaunchError
from efficientbench.launchers.job_scripts.container import BARE, Surroundings
from efficientbench.launchers.job_scripts.shell_script import array, beginning, extras_of

TEMPLATE = """\
#!/usr/bin/env bash
{options}
# Starts {name}. Written by `efficientbench launch`; submit it with sbatch.
{beginning}
{arguments}
job_slurm {container}efficientbench {command} "${{arguments[@]}}"
"""

STOP_BEFORE_S = 120
"""Seconds before its time limit at which Slurm asks a job to save and end: more than the ranks may take."""

DECIDED = {
    "nodes": "--nodes",
    "ntasks": "--nodes: one task a node",
    "ntasks-per-node": "--nodes: one task a node",
    "array": "the runs that are named",
    "wrap": "this script",
}
"""Option of sbatch → what decides it instead."""

OPTION = re.compile(r"[a-z][a-z-]*")
# sbatch would read white space, quotes, backslashes and comment signs as syntax.
VALUE = re.compile(r"[A-Za-z0-9_.,:;=/@%+*()&|!\[\]{}^~-]+")


def slurm_script(
    name: str,
    runs: Sequence[Sequence[str]],
    nodes: int,
    devices_per_node: int,
    options: Sequence[str],
    folder: Path,
    command: str = "run",
    around: Surroundings = BARE,
) -> str:
    """Return the text of the script.

    Args:
        name: the job's name, of letters, digits, `.`, `_` and `-`.
        runs: each run's arguments for the command; several runs become an array with one task each.
        nodes: nodes of each run.
        devices_per_node: accelerators of a node; 0: none.
        options: further options of sbatch, as `key=value` or `key`; they replace ours.
        folder: the folder in which relative paths among the arguments begin.
        command: the command of `efficientbench`.
        around: the modules and the container.

    Raises:
        LaunchError: sbatch would not read an option as it stands, or a container cannot mount a folder.
    """
    chosen = _options(name, len(runs), nodes, devices_per_node, options)
    lines = [f"#SBATCH --{key}" + (f"={value}" if value else "") for key, value in chosen.items()]
    words = around.before_command(folder, extras_of(command))
    return TEMPLATE.format(
        options="\n".join(lines),
        name=name,
        beginning=beginning(folder, around, command=command),
        arguments="\n".join([*([array("container", words)] if words else []), _arguments(runs)]),
        container='"${container[@]}" ' if words else "",
        command=command,
    )


def _options(name: str, runs: int, nodes: int, devices_per_node: int, given: Sequence[str]) -> dict[str, str]:
    ours = {
        "job-name": name,
        "nodes": str(nodes),
        "ntasks-per-node": "1",
        "output": "%x-%j.out" if runs == 1 else "%x-%A_%a.out",
        # A requeued job appends to the same file.
        "open-mode": "append",
        "requeue": "",
        "signal": f"B:TERM@{STOP_BEFORE_S}",
    }
    if runs > 1:
        ours["array"] = f"0-{runs - 1}"
    theirs = dict(_option(each) for each in given)
    if "cpus-per-task" not in theirs:
        # Else the measurement would include other jobs on the node.
        ours |= {"exclusive": "", "mem": "0"}
    if devices_per_node and not any(key == "gres" or key.startswith("gpus") for key in theirs):
        ours["gpus-per-node"] = str(devices_per_node)
    if "no-requeue" in theirs:
        del ours["requeue"]
    return ours | theirs


def _option(text: str) -> tuple[str, str]:
    key, separator, value = text.removeprefix("--").partition("=")
    if not OPTION.fullmatch(key):
        raise LaunchError(f"--sbatch: {text[:80]!r} is not an option of sbatch: write key=value, like partition=gpu")
    if key in DECIDED:
        raise LaunchError(f"--sbatch: {key} is decided by {DECIDED[key]}")
    if separator and not VALUE.fullmatch(value):
        raise LaunchError(
            f"--sbatch: {key}={value[:80]!r} has characters that sbatch would not read as they stand: white space, "
            "quotes, backslashes and # are refused"
        )
    return key, value


def _arguments(runs: Sequence[Sequence[str]]) -> str:
    if len(runs) == 1:
        return array("arguments", runs[0])
    cases = [f"    {number})\n{array('arguments', run, indent=' ' * 8)}\n        ;;" for number, run in enumerate(runs)]
    unknown = '    *)\n        echo "error: no run has the index $SLURM_ARRAY_TASK_ID" >&2\n        exit 2\n        ;;'
    return "\n".join(['case "$SLURM_ARRAY_TASK_ID" in', *cases, unknown, "esac"])
