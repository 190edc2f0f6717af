"""How long training waits for a checkpoint of a real size, and how long a run takes to resume from it.

    python tests/benchmarks/checkpoint_speed.py [LAYERS] [ROUNDS] [--write]

The model is the 0.5B with LAYERS layers, float32 with all states, on one rank. The checkpoint lies in a temporary
folder below the working directory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import Figure, add_write, write_measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="?", type=int, default=4)
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    add_write(parser)
    arguments = parser.parse_args()
    layers, rounds = arguments.layers, arguments.rounds
    import torch
    import torch.distributed as dist

    from efficientbench.config.layout import Layout
    from efficientbench.config.load import resolve
    from efficientbench.devices.cpu import CPU

    device = CPU().prepare(0)
    from efficientbench.model.gpt import build_stages
    from efficientbench.training import groups
    from efficientbench.training.checkpoints.manager import Checkpoints
    from efficientbench.training.checkpoints.manifest import checkpoint_folder, verify
    from efficientbench.training.checkpoints.shards import sharded_parameters
    from efficientbench.training.optimizer import build_optimizer, wrap_data_parallel

    config = resolve("gqa_0.5B", overrides=[f"model.layers={layers}", "training.dtype=fp32", "parallel.dp=1"])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder, groups.model_parallel(config.parallel, 0):
        models = build_stages(config, device)
        optimizer = build_optimizer([wrap_data_parallel(model, config) for model in models], config)
        times: dict[str, list[float]] = {}
        for number in range(1, rounds + 1):
            for asynchronous in (False, True):
                update = {"checkpoint": config.checkpoint.model_copy(update={"asynchronous": asynchronous, "keep": 1})}
                checkpoints = Checkpoints(
                    config.model_copy(update=update),
                    Layout.of(config, 1),
                    1000,
                    [],
                    Path(folder),
                    sharded_parameters(models, config.model),
                    optimizer,
                )
                step = 2 * number + asynchronous
                begin_s = time.perf_counter()
                checkpoints.save(step, stopped=False)
                kind = "asynchronous" if asynchronous else "synchronous"
                times.setdefault(f"{kind} save, training waits", []).append(time.perf_counter() - begin_s)
                checkpoints.saver.finish()
                if asynchronous:
                    times.setdefault("asynchronous save, until it is complete", []).append(
                        time.perf_counter() - begin_s
                    )
            saved = checkpoint_folder(Path(folder), step)
            _timed(times, "verify", partial(verify, saved))
            _timed(times, "restore, verified again", partial(checkpoints.restore, saved))
        parameters = sum(parameter.numel() for model in models for parameter in model.parameters())
        size_gb = sum(path.stat().st_size for path in saved.iterdir()) / 1e9
        conditions = f"{parameters:,} parameters, float32 with all states, one rank, {size_gb:.2f} GB"
        print(f"{conditions}, {rounds} rounds, torch {torch.__version__}")
    for name, values in times.items():
        print(f"{name}: median {statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})")
    if arguments.write:
        figures = {
            name.replace(",", "").replace(" ", "_"): Figure(
                name, statistics.median(values), "s", (min(values), max(values)), "range", rounds, "rounds"
            )
            for name, values in times.items()
        }
        write_measured(__file__, CPU(), figures, conditions)
    dist.destroy_process_group()


def _timed(times: dict[str, list[float]], name: str, work: Callable[[], object]) -> None:
    begin_s = time.perf_counter()
    work()
    times.setdefault(name, []).append(time.perf_counter() - begin_s)


if __name__ == "__main__":
    main()
