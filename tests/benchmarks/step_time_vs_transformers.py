"""Time of a training step, ours against transformers', on this machine's CPU.

The same model, batch, dtype and threads; float32 master weights and fused AdamW on both sides; rounds of both in turn.
Machines of one name differ, so that `--write` keeps a row for each kind of processor, with what its products reach.

    python3 tests/benchmarks/step_time_vs_transformers.py [--rounds 20] [--threads 2] [--write]
"""

from __future__ import annotations

import datetime
import os
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from support.measured import Figure, commit, options, seconds, write_row
from support.single_rank import world_of_one_rank
from support.training_steps import Step, our_step, random_tokens, transformers_step

from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.devices.cpu import CPU, processor
from efficientbench.model.kernels import TORCH_DTYPES, product

SHAPE = [
    "model.layers=6",
    "model.hidden_size=384",
    "model.heads=6",
    "model.head_dim=64",
    "model.attention.query_groups=2",
    "model.ffn_hidden_size=1536",
    "model.vocab_size=32000",
    "training.seq_len=1024",
    "training.micro_batch_size=2",
    "training.global_batch_size=2",
    "training.steps=10000",
]


def main() -> None:
    """Run the comparison in each dtype and print the paired ratios with their 95 % intervals."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", nargs="*", default=[], help="key=value overrides, like model.vocab_size=151936")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shape = [*SHAPE, *arguments.shape]
    row = {"machine": f"{len(os.sched_getaffinity(0))} cores of {CPU().names()[0]}", "processor": processor()}
    for dtype in ("fp32", "bf16"):
        if dtype in CPU().slow_dtypes():
            row |= dict.fromkeys(
                (f"{dtype} products, GFLOP/s", f"{dtype} step", f"{dtype} step, 95 %"), "n/a: too slow"
            )
            continue
        row[f"{dtype} products, GFLOP/s"] = products_gflops_per_s(TORCH_DTYPES[dtype])
        config = resolve("gqa_1.5B", smoke=True, overrides=[*shape, f"training.dtype={dtype}"])
        with world_of_one_rank(seed=config.training.seed) as device:
            ratio = compare(*build(config, device), arguments.rounds, dtype)
        print(ratio, flush=True)
        low, high = ratio.interval or (ratio.value, ratio.value)
        row |= {f"{dtype} step": f"{ratio.value:.3g}", f"{dtype} step, 95 %": f"{low:.3f} to {high:.3f}"}
    row |= {"commit": commit(), "date": datetime.date.today().isoformat()}
    print(*(f"{key}: {value}" for key, value in row.items()), sep="\n")
    if arguments.write:
        conditions = (
            f"time of a training step, ours over transformers', and products of 1,024 rows and columns; "
            f"{arguments.threads} threads on both sides, {arguments.rounds} rounds in turn; {', '.join(shape)}"
        )
        write_row(__file__, row, lambda each: (each["machine"], each["processor"]), conditions)


def products_gflops_per_s(dtype: torch.dtype) -> str:
    """Return what a product of two square matrices reaches, the best of some; in float32 by either library."""
    left, right = (torch.randn(1024, 1024).to(dtype) for _ in range(2))

    def best(multiply: Callable[[], torch.Tensor]) -> str:
        return f"{2 * 1024**3 / min(seconds(multiply) for _ in range(20)) / 1e9:.3g}"

    usual = best(lambda: torch.mm(left, right.t()))
    if dtype != torch.float32:
        return usual
    return f"{usual} by {product.BLAS}, {best(lambda: product.multiply(left, right))} by {product.ONEDNN}"


def compare(ours: Step, theirs: Step, rounds: int, dtype: str) -> Figure:
    """Time both steps in each round, in random order, after three rounds of warm-up; return the paired ratio."""
    times_s: dict[Step, list[float]] = {ours: [], theirs: []}
    for _ in range(3 + rounds):
        for step in random.sample([ours, theirs], 2):
            times_s[step].append(seconds(step))
    pairs = list(zip(times_s[ours][3:], times_s[theirs][3:], strict=True))
    medians = [statistics.median(each) * 1e3 for each in zip(*pairs, strict=True)]
    print(f"medians: ours {medians[0]:.1f} ms, transformers {medians[1]:.1f} ms")
    what = f"time of a training step in {dtype}, ours over transformers'"
    return Figure.with_bootstrap(what, [our_s / their_s for our_s, their_s in pairs], statistics.geometric_mean)


def build(config: RunConfig, device: torch.device) -> tuple[Step, Step]:
    """One training step of each side, from the same weights, on the same tokens."""
    from oracles.qwen2 import same_weights

    from efficientbench.model.initial_weights import global_parameters

    sequences = random_tokens(config, device)
    ours, stage = our_step(config, device, sequences)
    tensors = {name: parameter.detach().float() for name, parameter in global_parameters(stage).items()}
    qwen2 = same_weights(tensors, config.model)
    return ours, transformers_step(qwen2, config, sequences, autocast=config.training.dtype == "bf16")


if __name__ == "__main__":
    main()
