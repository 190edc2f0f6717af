"""How long training waits for a checkpoint of a real size, and how long a run takes to go on from it.

python tests/benchmarks/checkpoint_speed.py [LAYERS] [ROUNDS]: the 0.5B with so many of its layers, float32 with all
states, one rank, in a folder of its own below the working directory.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


def main() -> None:
    layers, rounds = (int(word) for word in [*sys.argv[1:], *("4", "5")[len(sys.argv) - 1 :]])
    import torch
    import torch.distributed as dist

    from efficientbench.config.layout import Layout
    from efficientbench.config.load import resolve
    from efficientbench.devices.cpu import CPU

    device = CPU().prepare(0)
    from efficientbench.model.gpt import build_stages
    from efficientbench.training import groups
    from efficientbench.training.checkpoints.held import held_parameters
    from efficientbench.training.checkpoints.manager import Checkpoints
    from efficientbench.training.checkpoints.manifest import checkpoint_folder, verify
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
                    held_parameters(models, config.model),
                    optimizer,
                )
                step = 2 * number + asynchronous
                begin_s = time.perf_counter()
                checkpoints.save(step, stopped=False)
                kind = "asynchronous" if asynchronous else "synchronous"
                times.setdefault(f"{kind} save, training waits", []).append(time.perf_counter() - begin_s)
                checkpoints.finish()
                if asynchronous:
                    times.setdefault("asynchronous save, until it is complete", []).append(
                        time.perf_counter() - begin_s
                    )
            saved = checkpoint_folder(Path(folder), step)
            _timed(times, "verify", partial(verify, saved))
            _timed(times, "restore, verified again", partial(checkpoints.restore, saved))
        parameters = sum(parameter.numel() for model in models for parameter in model.parameters())
        size_gb = sum(path.stat().st_size for path in saved.iterdir()) / 1e9
        print(f"{parameters:,} parameters, {size_gb:.2f} GB, {rounds} rounds, torch {torch.__version__}")
    for name, values in times.items():
        print(f"{name}: median {statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})")
    dist.destroy_process_group()


def _timed(times: dict[str, list[float]], name: str, work: Callable[[], object]) -> None:
    begin_s = time.perf_counter()
    work()
    times.setdefault(name, []).append(time.perf_counter() - begin_s)


if __name__ == "__main__":
    main()
