"""Decode with a run of the matrix on the fake device, and print as JSON what each new token asked for.

    python decode.py LIBRARY RUN LENGTH... [KEY=VALUE ...]

For each length: a step after so many tokens. The choice of a token, which needs numbers, is left out.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from replicas.fake_cuda import step  # loads the device before torch

# isort: split
import torch
import torch.distributed as dist
from replicas.fake_cuda import names
from replicas.fake_cuda.launches import Launches
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from efficientbench.config.load import resolve
from efficientbench.generation.decoder import Decoder
from efficientbench.generation.open_run import in_one_process
from efficientbench.model.gpt import build_stages
from efficientbench.training import groups

BATCH = 8


def main() -> None:
    logging.getLogger("megatron").setLevel(logging.ERROR)
    lengths = [int(word) for word in sys.argv[3:] if word.isdecimal()]
    words = [word for word in sys.argv[3:] if not word.isdecimal()]
    config = in_one_process(resolve(sys.argv[2], False, ["training.draw_weights_on=cpu", *words]))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    launches = Launches()
    step.stand_in(config, launches)
    seen: list[dict[str, Any]] = []
    with groups.model_parallel(config.parallel, seed=0), FakeTensorMode(), launches, torch.no_grad():
        [model] = build_stages(config, names.DEVICE)
        decoder = Decoder(model.eval(), [[0]] * BATCH, max(lengths) + 2)
        decoder.cache.fresh = False
        with decoder.bound():
            for length in lengths:
                decoder.longest = length
                decoder.step([0] * BATCH)  # makes the masks of this length
                launches.begin()
                names.WAITS.clear()
                before = launches.live_bytes
                decoder.step([0] * BATCH)
                seen.append(
                    {
                        "launches": launches.operations.total(),
                        "most": dict(launches.operations.most_common(20)),
                        "to_host": launches.to_host,
                        "to_device": launches.to_device,
                        "waits": list(names.WAITS),
                        "kept_bytes": launches.live_bytes - before,
                        "moved_bytes": launches.moved_bytes,
                    }
                )
    print(json.dumps({"steps": seen}))


if __name__ == "__main__":
    main()
