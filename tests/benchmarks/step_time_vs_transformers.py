"""Time of a training step, ours against transformers', on this machine's CPU.

The same model, batch, dtype and threads; float32 master weights and fused AdamW on both sides; rounds of both in turn.

    python3 tests/benchmarks/step_time_vs_transformers.py [--dtype fp32] [--rounds 20] [--threads 2] [--write]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from support.measured import Figure, add_write, write_measured
from support.training_steps import Step, our_step, random_tokens, transformers_step

from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.devices.cpu import CPU

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
    """Run the comparison and print the paired ratio with its 95 % interval."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", nargs="*", default=[], help="key=value overrides, like model.vocab_size=151936")
    add_write(parser)
    arguments = parser.parse_args()
    config = resolve("gqa_1.5B", smoke=True, overrides=[*SHAPE, f"training.dtype={arguments.dtype}", *arguments.shape])
    device = CPU().prepare(0)
    torch.set_num_threads(arguments.threads)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    from efficientbench.training import groups

    with groups.model_parallel(config.parallel, config.training.seed):
        ratio = report(compare(*build(config, device), arguments.rounds))
    if arguments.write:
        words = ", ".join([*SHAPE, *arguments.shape])
        conditions = f"{arguments.dtype}, {arguments.threads} threads on both sides, rounds in turn; {words}"
        write_measured(__file__, CPU(), {"ratio": ratio}, conditions)


def compare(ours: Step, theirs: Step, rounds: int) -> list[tuple[float, float]]:
    """Times of both steps in each round, s, after a warm-up."""
    for step in (ours, theirs):
        for _ in range(3):
            step()
    pairs = []
    for _ in range(rounds):
        order = [ours, theirs]
        random.shuffle(order)
        times = {step: timed(step) for step in order}
        pairs.append((times[ours], times[theirs]))
    return pairs


def build(config: RunConfig, device: torch.device) -> tuple[Step, Step]:
    """One training step of each side, from the same weights, on the same tokens."""
    from support.qwen2 import same_weights

    from efficientbench.model.initial_weights import global_parameters

    sequences = random_tokens(config, device)
    ours, stage = our_step(config, device, sequences)
    tensors = {name: parameter.detach().float() for name, parameter in global_parameters(stage).items()}
    qwen2 = same_weights(tensors, config.model)
    return ours, transformers_step(qwen2, config, sequences, autocast=config.training.dtype == "bf16")


def timed(step: Step) -> float:
    """Wall time of one step, s."""
    begin_s = time.perf_counter()
    step()
    return time.perf_counter() - begin_s


def report(pairs: list[tuple[float, float]]) -> Figure:
    """Print both medians, and return the geometric mean of the paired ratios with a bootstrap interval."""
    logs = [math.log(ours / theirs) for ours, theirs in pairs]
    generator = random.Random(0)
    means = sorted(statistics.fmean(generator.choices(logs, k=len(logs))) for _ in range(5000))
    low, middle, high = (math.exp(value) for value in (means[125], statistics.fmean(logs), means[4874]))
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"ours {ours * 1e3:.1f} ms, transformers {theirs * 1e3:.1f} ms (medians of {len(pairs)} rounds)")
    print(f"ratio ours / transformers {middle:.3f}, 95 % interval {low:.3f} to {high:.3f}")
    what = "time of a training step, ours over transformers'"
    return Figure(what, middle, "", (low, high), n=len(pairs), n_of="rounds")


if __name__ == "__main__":
    main()
