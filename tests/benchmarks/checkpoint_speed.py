"""How long training waits for a checkpoint of a real size, and how long a run takes to resume from it.

    python tests/benchmarks/checkpoint_speed.py [LAYERS] [ROUNDS] [--write]

The model is the 0.5B with LAYERS layers, float32 with all states, on one rank. The checkpoint lies in a temporary
folder below the working directory.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import defaultdict
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import Figure, options, report, seconds
from support.single_rank import world_of_one_rank

from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("layers", nargs="?", type=int, default=4)
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    arguments = parser.parse_args()
    config = resolve("gqa_0.5B", overrides=[f"model.layers={arguments.layers}", "training.dtype=fp32", "parallel.dp=1"])
    times: dict[str, list[float]] = defaultdict(list)
    with world_of_one_rank() as device, tempfile.TemporaryDirectory(dir=os.getcwd()) as name:
        from efficientbench.model.gpt import build_stages
        from efficientbench.training.checkpoints.manager import Checkpoints
        from efficientbench.training.checkpoints.manifest import checkpoint_folder, verify
        from efficientbench.training.checkpoints.shards import sharded_parameters
        from efficientbench.training.update.optimizer import build_optimizer, wrap_data_parallel

        folder = Path(name)
        models = build_stages(config, device)
        optimizer = build_optimizer([wrap_data_parallel(model, config) for model in models], config)
        parameters, layout = sharded_parameters(models, config.model), Layout.of(config, 1)
        for number in range(1, arguments.rounds + 1):
            for asynchronous in (False, True):
                update = {"checkpoint": config.checkpoint.model_copy(update={"asynchronous": asynchronous, "keep": 1})}
                changed = config.model_copy(update=update)
                checkpoints = Checkpoints(changed, layout, 1000, [], folder, parameters, optimizer)
                step = 2 * number + asynchronous
                kind = "asynchronous" if asynchronous else "synchronous"
                waits_s = seconds(partial(checkpoints.save, step, stopped=False))
                times[f"{kind} save, training waits"].append(waits_s)
                writes_s = seconds(checkpoints.saver.finish)
                if asynchronous:
                    times["asynchronous save, until it is complete"].append(waits_s + writes_s)
            saved = checkpoint_folder(folder, step)
            times["verify"].append(seconds(partial(verify, saved)))
            times["restore, verified again"].append(seconds(partial(checkpoints.restore, saved)))
        count = sum(parameter.numel() for model in models for parameter in model.parameters())
        size_gb = sum(path.stat().st_size for path in saved.iterdir()) / 1e9
    figures = {
        name.replace(",", "").replace(" ", "_"): Figure.with_range(name, values, "s") for name, values in times.items()
    }
    conditions = f"{count:,} parameters, float32 with all states, one rank, {size_gb:.2f} GB"
    report(__file__, arguments, figures, conditions)


if __name__ == "__main__":
    main()
