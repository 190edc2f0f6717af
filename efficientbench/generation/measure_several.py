"""Measure generation with several models, each in a process of its own, and print them in one table.

What a model leaves in memory, and what is compiled for it, would count in the next one's figures.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from efficientbench.generation.measure_command import INTERRUPTED, record_folder
from efficientbench.launchers.processes.worker_process import module_command
from efficientbench.metrics.records.generation import read_generation
from efficientbench.metrics.report.generation import beside, print_generation


def measure_several(
    runs: Sequence[str], arguments: Sequence[str], options: Sequence[str], smoke: bool, matrix: Path
) -> int:
    """Measure one model after another, and print those of which a row was measured; return the exit code.

    It is that of an interruption, after which no further model is measured, else the first that is not 0.

    Args:
        runs: folders, and names of a matrix.
        arguments: overrides of the configuration, for all names.
        options: of `efficientbench generate` for each, `--measure` among them.
        smoke: whether names stand for scaled-down models; among `options`, too.
        matrix: where the names are looked up; among `options`, too.

    Raises:
        ConfigError: a name or an override is wrong; nothing has been measured then.
    """
    folders = [record_folder(run, arguments, smoke, matrix) for run in runs]
    codes: list[int] = []
    for run in runs:
        codes.append(_exit_code(module_command("efficientbench.cli", "generate", run, *arguments, *options)))
        if codes[-1] == INTERRUPTED:
            break
    records = [read_generation(folder.generation) for folder, code in zip(folders, codes, strict=False) if code == 0]
    print_generation(beside(records, []), [], Console())
    return INTERRUPTED if INTERRUPTED in codes else next(filter(None, codes), 0)


def _exit_code(command: Sequence[str]) -> int:
    """Run a command to its end, also after Ctrl-C, which it gets too: it then ends with what it has measured."""
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()
            return INTERRUPTED
