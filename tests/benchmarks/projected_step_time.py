"""A step's time as `plan` projects it against the time that it takes, on one and two single-threaded gloo ranks.

Measures this machine's rates before and after, in place of a row of the table of devices: FLOP/s of the model's largest
matrix products and of its attention, bytes a second of its activation, and gloo's all-reduce, all ranks at once, since
they share memory and cores. Then projects and trains each layout, round after round, and prints measured over
projected. Of steps and of rates the least time of several counts, which other processes disturb least.

    python3 tests/benchmarks/projected_step_time.py [--steps 10] [--rounds 3] [--layouts "one rank" "DP 2"] [--write]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from support.cells import write_corpus
from support.measured import Figure, add_write, write_measured
from support.ranks import Ranks

from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import causal_score_flops
from efficientbench.devices.cpu import CPU
from efficientbench.metrics.hardware import DeviceRates
from efficientbench.planning.step_time import Efficiency, Projection, project

WITHIN = 0.25

SHAPE = [
    "model.layers=2",
    "model.hidden_size=384",
    "model.heads=6",
    "model.head_dim=64",
    "model.attention.query_groups=2",
    "model.ffn_hidden_size=1536",
    "model.vocab_size=8192",
    "training.seq_len=512",
    "training.micro_batch_size=1",
    "training.global_batch_size=2",
    "training.dtype=fp32",
    "training.steps=1000",
]
LAYOUTS = {
    "one rank": ["parallel.dp=1"],
    "DP 2": ["parallel.dp=2"],
    "TP 2": ["parallel.dp=1", "parallel.tp=2"],
    "PP 2": ["parallel.dp=1", "parallel.pp=2"],
}


def main() -> None:
    """Print each layout's ratio; exit with 1 where one is off by more than a quarter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="measured steps of each round")
    parser.add_argument("--rounds", type=int, default=3, help="times that rates, then steps are measured")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    add_write(parser)
    arguments = parser.parse_args()
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.layouts:
            config = resolve("gqa_1.5B", True, [*SHAPE, f"data.cache={folder}", *LAYOUTS[name]])
            write_corpus(Path(folder) / "tokens", config.model.vocab_size, documents=300, length=200)
            figures[name] = compare(name, config, Path(folder) / "tokens", arguments.rounds, arguments.steps)
    if arguments.write:
        write_measured(__file__, CPU(), figures, "float32, one thread a rank, rates measured before and after")
    sys.exit(int(any(not 1 - WITHIN <= figure.value <= 1 + WITHIN for figure in figures.values())))


def compare(name: str, config: RunConfig, prefix: Path, rounds: int, steps: int) -> Figure:
    """Print a layout's figures; return measured over projected time."""
    layout = Layout.of(config, devices=1, oversubscribe=True)
    ranks, ratios = Ranks(layout.world_size), []
    try:
        for _ in range(rounds):
            # Before and after, since a machine's speed is not the same from one minute to the next.
            before = slowest(ranks.call(measure_rates, config))
            times = zip(*ranks.call(train, config, prefix, steps), strict=True)
            step_time_s = min(max(each) for each in times)
            rates, efficiency = slowest(ranks.call(measure_rates, config))
            projection = project(config, layout, rates, efficiency)
            projected_s = (project(config, layout, *before).step_time_s + projection.step_time_s) / 2
            ratios.append(step_time_s / projected_s)
    finally:
        ranks.close()
    ratio = statistics.median(ratios)
    print(
        f"{name}: measured {step_time_s:.3f} s, projected {projected_s:.3f} s (the last round); measured / projected "
        f"{ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f} over {rounds} rounds)\n  {told(rates, efficiency)}\n"
        f"  {parts(projection)}",
        flush=True,
    )
    what = f"measured over projected step time, {name}"
    return Figure(what, ratio, "", (min(ratios), max(ratios)), "range", rounds, "rounds")


def slowest(measured: list[tuple[float, float, float, float]]) -> tuple[DeviceRates, Efficiency]:
    """What the slowest rank reached, as a row of the table of devices of which all is reached."""
    matmul, attention, memory, link = (min(each) for each in zip(*measured, strict=True))
    rates = DeviceRates("this machine", "gloo", matmul, memory, None, link, None, ("measured",))
    return rates, Efficiency(matmul=1, attention=attention / matmul, memory=1, link=1)


def told(rates: DeviceRates, efficiency: Efficiency) -> str:
    return (
        f"measured rates of a rank: matmul {rates.peak_flops / 1e9:.1f} GFLOP/s, attention "
        f"{rates.peak_flops * efficiency.attention / 1e9:.1f} GFLOP/s, memory {rates.memory_bytes_s / 1e9:.1f} GB/s, "
        f"gloo {rates.in_node_bytes_s / 1e9:.2f} GB/s"
    )


def parts(projection: Projection) -> str:
    named = {**projection.compute_s, **projection.communication_s, "pipeline bubble": projection.bubble_s}
    return "projected, ms: " + ", ".join(f"{name} {time_s * 1e3:.1f}" for name, time_s in named.items() if time_s)


def measure_rates(config: RunConfig) -> tuple[float, float, float, float]:
    """Return FLOP/s of the feed-forward products and of causal attention, and bytes/s of the activation and of gloo.

    FLOPs are those of forward and backward, as the cost formulas count them; gloo's rate is of a large all-reduce.
    """
    import torch.distributed as dist

    from efficientbench.model.kernels.causal_attention import causal_attention
    from efficientbench.model.kernels.swiglu import swiglu

    model, training = config.model, config.training
    tokens, tp = training.micro_batch_size * training.seq_len, config.parallel.tp
    inputs = torch.randn(tokens, model.hidden_size)
    weight, total = torch.randn(2, 2 * model.ffn_hidden_size // tp, model.hidden_size)
    outputs = inputs @ weight.t()
    # Forward, gradient of the input, gradient of the weight added up: as a linear layer of the model computes them.
    product_s = least(lambda: (inputs @ weight.t(), outputs @ weight, total.addmm_(outputs.t(), inputs)))
    heads = [model.heads // tp, *[max(model.key_value_heads // tp, 1)] * 2]
    query, key, value = (
        torch.randn(training.seq_len, training.micro_batch_size, count, model.head_dim, requires_grad=True)
        for count in heads
    )
    ones = torch.ones(training.seq_len, training.micro_batch_size, heads[0] * model.head_dim)
    attention_s = least(lambda: causal_attention(query, key, value, 0.1).backward(ones))
    gate_up = torch.randn(tokens, 2 * model.ffn_hidden_size // tp, requires_grad=True)
    grad = torch.ones(tokens, model.ffn_hidden_size // tp)
    # What operations one after another read and write, as work_cost.py counts SwiGLU's: results are new memory.
    activation_s = least(lambda: torch.autograd.grad(swiglu(gate_up), gate_up, grad))
    link = float("inf")
    if dist.get_world_size() > 1:
        size, sent = dist.get_world_size(), torch.ones(2**21)
        link = 2 * (size - 1) / size * sent.nbytes / least(lambda: dist.all_reduce(sent))
    return (
        3 * 2 * tokens * weight.numel() / product_s,
        3 * tokens * causal_score_flops(model, training.seq_len) / tp / attention_s,
        17 * grad.nbytes / activation_s,
        link,
    )


def least(work: Callable[[], object], times: int = 7) -> float:
    """The least of several times, s, after one that is not counted."""
    measured = []
    for _ in range(times + 1):
        begin_s = time.perf_counter()
        work()
        measured.append(time.perf_counter() - begin_s)
    return min(measured[1:])


def train(config: RunConfig, prefix: Path, steps: int) -> list[float]:
    """The time of each step on this rank, s, after two that are not counted."""
    from efficientbench.model.gpt import build_stages
    from efficientbench.training import groups
    from efficientbench.training.batches import Batches, Vocabulary
    from efficientbench.training.optimizer import build_optimizer, wrap_data_parallel
    from efficientbench.training.trainer import Trainer

    times: list[float] = []
    device = torch.device("cpu")
    with groups.model_parallel(config.parallel, config.training.seed):
        stages = [wrap_data_parallel(stage, config) for stage in build_stages(config, device)]
        batches = Batches(config, 50, [prefix], Vocabulary(config.model.vocab_size, 0, {"name": "random"}), device)
        trainer = Trainer(config, 50, stages, build_optimizer(stages, config), batches, [])
        for step in range(1, steps + 3):
            groups.barrier()
            begin_s = time.perf_counter()
            trainer.train_step(step)
            times.append(time.perf_counter() - begin_s)
    return times[2:]


if __name__ == "__main__":
    main()
