"""A step's time as `plan` projects it against the time that it takes, on one and two single-threaded gloo ranks.

Measures this machine's rates before and after, in place of a row of the table of devices: FLOP/s of the model's largest
matrix products and of its attention, bytes a second of its activation, and gloo's all-reduce, all ranks at once, since
they share memory and cores. Then projects and trains each layout, round after round, and prints measured over
projected. Of steps and of rates the least time of several counts, which other processes disturb least.

    python3 tests/benchmarks/projected_step_time.py [--steps 10] [--rounds 3] [--layouts "one rank" "DP 2"] [--write]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from support.cells import write_corpus
from support.measured import Figure, options, report, seconds
from support.ranks import Ranks
from support.tiny_training import tiny_training

from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.metrics.sensors.hardware import DeviceRates
from efficientbench.planning.efficiency import Efficiency
from efficientbench.planning.step_time import project

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
    # Ranks that share cores have nothing to hide a transfer behind.
    "DP 2": ["parallel.dp=2", "parallel.overlap=false"],
    "TP 2": ["parallel.dp=1", "parallel.tp=2"],
    "PP 2": ["parallel.dp=1", "parallel.pp=2"],
}


def main() -> None:
    """Print each layout's ratio; exit with 1 where one is off by more than a quarter."""
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, default=10, help="measured steps of each round")
    parser.add_argument("--rounds", type=int, default=3, help="times that rates, then steps are measured")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    arguments = parser.parse_args()
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.layouts:
            config = resolve("gqa_1.5B", True, [*SHAPE, f"data.cache={folder}", *LAYOUTS[name]])
            write_corpus(Path(folder) / "tokens", config.model.vocab_size, documents=300, length=200)
            figures[name] = compare(name, config, Path(folder) / "tokens", arguments.rounds, arguments.steps)
    report(__file__, arguments, figures, "float32, one thread a rank, rates measured before and after")
    sys.exit(int(any(not 1 - WITHIN <= figure.value <= 1 + WITHIN for figure in figures.values())))


def compare(name: str, config: RunConfig, prefix: Path, rounds: int, steps: int) -> Figure:
    """Print a layout's figures; return measured over projected time."""
    layout = Layout.of(config, devices=1, oversubscribe=True)
    ratios = []
    with closing(Ranks(layout.world_size)) as ranks:
        for _ in range(rounds):
            # Before and after, since a machine's speed is not the same from one minute to the next.
            before = slowest(ranks.call(measure_rates, config))
            times = zip(*ranks.call(train, config, prefix, steps), strict=True)
            step_time_s = min(max(each) for each in times)
            rates, efficiency = slowest(ranks.call(measure_rates, config))
            projection = project(config, layout, rates, efficiency)
            projected_s = (project(config, layout, *before).step_time_s + projection.step_time_s) / 2
            ratios.append(step_time_s / projected_s)
            print(f"{name}: measured {step_time_s:.3f} s, projected {projected_s:.3f} s", flush=True)
    print(rates, efficiency, projection, sep="\n", flush=True)
    return Figure.with_range(f"measured over projected step time, {name}", ratios)


def slowest(measured: list[tuple[float, float, float, float]]) -> tuple[DeviceRates, Efficiency]:
    """What the slowest rank reached, as a row of the table of devices of which all is reached."""
    matmul, attention, memory, link = (min(each) for each in zip(*measured, strict=True))
    rates = DeviceRates("this machine", "gloo", matmul, memory, None, link, None, ("measured",))
    return rates, Efficiency(matmul=1, attention=attention / matmul, memory=1, link=1)


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
        3 * tokens * model.attention_variant.costs.causal_score_flops(model, training.seq_len) / tp / attention_s,
        17 * grad.nbytes / activation_s,
        link,
    )


def least(work: Callable[[], object], times: int = 7) -> float:
    """Return the least of several times, in s, after one that is not counted."""
    work()
    return min(seconds(work) for _ in range(times))


def train(config: RunConfig, prefix: Path, steps: int) -> list[float]:
    """Return the time of each step on this rank, in s, after two that are not counted."""
    from efficientbench.training import groups

    times: list[float] = []
    with tiny_training(config, prefix, steps=50) as trainer:
        for step in range(1, steps + 3):
            groups.barrier()
            times.append(seconds(partial(trainer.train_step, step)))
    return times[2:]


if __name__ == "__main__":
    main()
