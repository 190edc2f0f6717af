"""The work of a generation's ranks, which share the model."""

from __future__ import annotations

import io
import sys
from functools import partial
from pathlib import Path

from efficientbench.architecture.registry import load_kinds
from efficientbench.basics.errors import GenerationError, LackOfMemoryError
from efficientbench.generation.command import print_texts
from efficientbench.generation.on_ranks import Generation
from efficientbench.generation.open_run import Share, opened
from efficientbench.launchers.processes.failure import Failure, Kind
from efficientbench.running.errors import USERS_MISTAKES
from efficientbench.running.failures import FULL, LOST_PEER, ran_out_of_memory, users_mistake
from efficientbench.running.rank_process import Rank, Work


def rank_work(job_file: Path) -> Work:
    """Return the work of a generation's ranks."""
    request = Generation.read(job_file)
    # A text that nobody reads any more is of no use.
    return Work(request.log, partial(generate_rank, request), partial(diagnose, request), outlives_pipes=False)


def generate_rank(request: Generation, rank: Rank) -> bool:
    """Compute this rank's part of each step, and print the texts on rank 0; return whether a stop was requested."""
    model = request.model
    load_kinds(model.kinds)
    with opened(model.folder, model.step, Share(model.parallel, rank)) as run:
        from efficientbench.training.groups import any_rank

        device = next(run.model.parameters()).device
        out = sys.stdout if rank.number == 0 else io.StringIO()
        # All ranks stop at the same step: the others would wait in the next step for a rank that ends alone.
        return print_texts(run, request, out, lambda: any_rank(rank.stop_requested(), device))


def diagnose(request: Generation, error: Exception, log_file: Path) -> Failure:
    """Return the failure that an exception means. `log_file`: the log that holds its traceback."""
    if isinstance(error, USERS_MISTAKES):
        return users_mistake(error)
    if isinstance(error, GenerationError):
        return Failure("non_finite", f"{request.model.folder}: {error}")
    if isinstance(error, LackOfMemoryError):
        return Failure("out_of_memory", str(error))
    if ran_out_of_memory(error):
        return Failure("out_of_memory", f"out of memory for the weights: a --tp above {request.model.tp} may fit")
    if isinstance(error, BrokenPipeError):
        return users_mistake(OSError("the output was closed before all texts were complete"))
    if isinstance(error, OSError) and error.errno in FULL:
        return users_mistake(error)
    kind: Kind = "lost_rank" if LOST_PEER.search(str(error)) else "crash"
    return Failure(kind, f"{type(error).__name__}: {error} (traceback in {log_file})")
