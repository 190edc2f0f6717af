"""The work of a generation's ranks, which share the model."""

from __future__ import annotations

import sys
import threading
from functools import partial
from pathlib import Path

from efficientbench.architecture.registry import load_kinds
from efficientbench.generation.command import print_texts
from efficientbench.generation.on_ranks import Generation
from efficientbench.generation.open_run import Share, opened
from efficientbench.launchers.processes.heartbeat import INTERVAL_S
from efficientbench.running.rank_process import Rank, Work
from efficientbench.training.checkpoints.hashing import Report


def rank_work(job_file: Path) -> Work:
    """Return the work of a generation's ranks."""
    request = Generation.read(job_file)
    return Work(request.log, partial(generate_rank, request), request.diagnose)


def generate_rank(request: Generation, rank: Rank) -> bool:
    """Compute this rank's part of each step, and print the texts on rank 0; return whether a stop was requested."""
    load_kinds(request.model.kinds)
    model = request.model
    with opened(request.folder, model.step, Share(model.parallel, rank), model.quantization) as run:
        from efficientbench.training.groups import any_rank

        device = next(run.model.parameters()).device
        write = partial(write_patiently, rank.report) if rank.number == 0 else lambda text: None
        # All ranks stop at the same step: the others would wait in the next step for a rank that ends alone.
        return print_texts(run, request, write, lambda: any_rank(rank.stop_requested(), device))


def write_patiently(report: Report, text: str) -> None:
    """Write a text to stdout, and report while its reader waits, such as `less`: this is no hang.

    Raises BrokenPipeError: the reader has gone.
    """
    written = threading.Event()

    def report_until_written() -> None:
        while not written.wait(INTERVAL_S):
            report("waiting for the reader of the texts")

    threading.Thread(target=report_until_written, daemon=True).start()
    try:
        # Not to a pipe by `sys.stdout`, which outlives its reader: a text that nobody reads any more is of no use.
        print(text, end="", flush=True, file=sys.stdout if sys.stdout.isatty() else sys.__stdout__)
    finally:
        written.set()
