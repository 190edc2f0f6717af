"""One rank of a generation: `python -m efficientbench.generation.rank REQUEST.json`; the launcher starts it."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from efficientbench.architecture.registry import load_kinds
from efficientbench.basics.errors import GenerationError, LackOfMemoryError
from efficientbench.devices.registry import find_device
from efficientbench.generation.command import Screen, tokenized
from efficientbench.generation.generate import generate
from efficientbench.generation.memory import Case, lack_of_memory, usable_bytes
from efficientbench.generation.on_ranks import REQUEST, Request
from efficientbench.generation.open_run import opened
from efficientbench.launchers.processes.failure import Failure, Kind
from efficientbench.running.errors import USERS_MISTAKES
from efficientbench.running.failures import FULL, LOST_PEER, ran_out_of_memory, users_mistake
from efficientbench.running.rank_process import StopRequested, end, run_rank


def main() -> int:
    """Run the rank that the environment names, and report a failure to the launcher; return the exit code."""
    request = REQUEST.validate_json(Path(sys.argv[1]).read_bytes())
    rank = int(os.environ["RANK"])
    log_file = request.log / f"rank_{rank}.log"
    return run_rank(
        rank,
        log_file,
        lambda stop: generate_rank(request, rank, stop),
        lambda error: diagnose(error, request, log_file),
    )


def generate_rank(request: Request, rank: int, stop_requested: StopRequested) -> bool:
    """Compute this rank's part of each step, and print the texts on rank 0; return whether a stop was requested."""
    load_kinds(request.kinds)
    with opened(request.folder, request.step, request.parallel) as run:
        from efficientbench.training.groups import any_rank

        prompts = tokenized(run, request.texts, request.max_new_tokens)
        screen = Screen(run.tokenizer.decode, request.texts, prompts, sys.stdout if rank == 0 else io.StringIO())
        stop = [run.tokenizer.eod_id]
        device = next(run.model.parameters()).device
        steps = generate(run.model, prompts, request.sampling, request.max_new_tokens, stop, batch=request.batch)
        try:
            for emitted in steps:
                screen.show(emitted)
                # All ranks stop at the same step: the others would wait in the next step for a rank that ends alone.
                if any_rank(stop_requested(), device):
                    screen.close()
                    return True
        except Exception as error:
            full = ran_out_of_memory(error)
            # After an OSError (a closed pipe, a full disk) nothing more can be printed.
            if full or not isinstance(error, OSError):
                screen.close()
            if not full:
                raise
            case = Case(max(map(len, prompts)), min(request.batch, len(prompts)), request.max_new_tokens)
            usable = usable_bytes(find_device(run.config.device, trains=False), request.tp)
            raise LackOfMemoryError(lack_of_memory(run.config, case, usable)) from error
    return False


def diagnose(error: Exception, request: Request, log_file: Path) -> Failure:
    """Return the failure that an exception means. `log_file`: the log that holds its traceback."""
    if isinstance(error, USERS_MISTAKES):
        return users_mistake(error)
    if isinstance(error, GenerationError):
        return Failure("non_finite", f"{request.folder}: {error}")
    if isinstance(error, LackOfMemoryError):
        return Failure("out_of_memory", str(error))
    if ran_out_of_memory(error):
        return Failure("out_of_memory", f"out of memory for the weights: a --tp above {request.tp} may fit")
    if isinstance(error, BrokenPipeError):
        return users_mistake(OSError("the output was closed before all texts were complete"))
    if isinstance(error, OSError) and error.errno in FULL:
        return users_mistake(error)
    kind: Kind = "lost_rank" if LOST_PEER.search(str(error)) else "crash"
    return Failure(kind, f"{type(error).__name__}: {error} (traceback in {log_file})")


if __name__ == "__main__":
    end(main())
