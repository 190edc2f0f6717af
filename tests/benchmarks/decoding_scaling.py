"""How the time of a new token in an attention layer grows with the tokens before it, fitted to c · S^a.

    python tests/benchmarks/decoding_scaling.py [--size 0.5B] [--batch 1] [--threads 2] [--write]

Measures a model of one layer with a small vocabulary, float32 on the CPU. The cache holds random numbers: what they are
changes nothing in the time.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from attention_scaling import exponent
from support.measured import Figure, options, report, seconds
from support.single_rank import world_of_one_rank

from efficientbench.config.load import resolve

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
VARIANTS = ("gqa", "mla", "nsa")
REPETITIONS, WARMUP = 60, 10


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--size", default="0.5B", help="size of the matrix whose layer is measured")
    parser.add_argument("--batch", type=int, default=1, help="rows")
    parser.add_argument("--threads", type=int, default=2, help="threads that torch computes with")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    figures: dict[str, Figure] = {}
    with world_of_one_rank():
        for variant in VARIANTS:
            times_s = measure(f"{variant}_{arguments.size}", arguments.batch)
            medians_s = {length: statistics.median(each) for length, each in times_s.items()}
            what = f"{variant.upper()}: time of a new token grows as S^a: a"
            figures[f"{variant} exponent"] = Figure(what, exponent(medians_s))
            for length, each in times_s.items():
                figures[f"{variant} {length}"] = Figure.with_range(
                    f"{variant.upper()}: a new token after {length - 1:,}",
                    [time_s * 1e3 for time_s in each],
                    "ms",
                    "steps",
                )
    conditions = (
        f"{arguments.size}, one layer with its projections, float32, rows: {arguments.batch}, threads: "
        f"{arguments.threads}, {REPETITIONS} steps at each length in turn"
    )
    report(__file__, arguments, figures, conditions)


def measure(name: str, batch: int) -> dict[int, list[float]]:
    """Return the times of the steps in s, by the tokens that there are with the new one."""
    from efficientbench.model.cache import Cache
    from efficientbench.model.gpt import build_stages

    config = resolve(name, overrides=["model.layers=1", "model.vocab_size=64", "training.dtype=fp32"])
    [model] = build_stages(config, torch.device("cpu"))
    cache = Cache(model.eval(), batch, LENGTHS[-1])
    cache.fresh = False
    for state in cache.states:
        for tensor in vars(state).values():
            tensor.normal_()
    tokens, only = torch.zeros(batch, 1, dtype=torch.int64), torch.zeros(batch, dtype=torch.int64)
    times_s: dict[int, list[float]] = {length: [] for length in LENGTHS}
    # As `Decoder` computes a step: without the mode behind the names of torch.cuda.
    with torch.no_grad(), torch._C.DisableTorchFunction(), cache.bound():
        # In turn, so that what slows the machine down for a while slows all lengths.
        for number in range(WARMUP + REPETITIONS):
            for length in LENGTHS:
                cache.lengths.fill_(length - 1)
                cache.reach = length
                time_s = seconds(lambda: model(tokens, only=only))
                if number >= WARMUP:
                    times_s[length].append(time_s)
    return times_s


if __name__ == "__main__":
    main()
