"""How time and memory of an attention layer grow with the sequence: NSA beside GQA, fitted to c · S^a.

    python tests/benchmarks/attention_scaling.py [--size 0.5B] [--threads 2] [--write]

Measures the module with its projections, forward and backward, float32 on the CPU, one sequence in a batch. Each
measurement has a process of its own, so that none finds memory that another left.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import Figure, options, report, seconds
from support.single_rank import world_of_one_rank

from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig

if TYPE_CHECKING:
    import torch

SEQUENCES = (2048, 4096, 8192, 16384)
VARIANTS = ("nsa", "gqa")
LEAST_PASSES = 3
LEAST_TIME_S = 4.0


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--size", default="0.5B", help="size of the matrix whose layer is measured")
    parser.add_argument("--threads", type=int, default=2, help="threads that torch computes with")
    parser.add_argument("--measure", nargs=2, metavar=("VARIANT", "SEQUENCE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        variant, sequence = arguments.measure
        print(json.dumps(measure(f"{variant}_{arguments.size}", int(sequence), arguments.threads)))
        return
    same = ["--size", arguments.size, "--threads", str(arguments.threads)]
    figures: dict[str, Figure] = {}
    for variant in VARIANTS:
        found = [
            json.loads(
                subprocess.run(
                    [sys.executable, __file__, *same, "--measure", variant, str(sequence)],
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                ).stdout
            )
            for sequence in SEQUENCES
        ]
        for name, unit in (("time", "s"), ("memory", "MB")):
            values = {sequence: one[name] for sequence, one in zip(SEQUENCES, found, strict=True)}
            print(f"{variant} {name}, {unit}, by tokens: {values}", flush=True)
            what = f"{variant.upper()}: {name} grows as S^a: a"
            figures[f"{variant}_{name}_exponent"] = Figure(what, exponent(values))
            for sequence in (SEQUENCES[0], SEQUENCES[-1]):
                what = f"{variant.upper()}: {name} at {sequence:,} tokens"
                figures[f"{variant}_{name}_{sequence}"] = Figure(what, values[sequence], unit)
    conditions = f"{arguments.size}, float32, one sequence, {arguments.threads} threads, least of several passes"
    report(__file__, arguments, figures, conditions)


def measure(
    name: str,
    sequence: int,
    threads: int,
    overrides: Sequence[str] = (),
    time_of: Callable[[Callable[[], object]], float] = seconds,
) -> dict[str, float]:
    """Return the least time of several passes, forward and backward, in s, and the memory that they take, in MB."""
    import torch

    torch.set_num_threads(threads)
    config = configured(name, overrides)
    with world_of_one_rank() as device:
        attention = layer(config, device)
        torch.manual_seed(0)

        def run(hidden: torch.Tensor) -> None:
            out, _ = attention(hidden, attention_mask=None)
            out.backward(out.detach())

        run(torch.randn(64, 1, config.model.hidden_size))  # warm-up
        # The kernel's peak of this process (VmHWM) then begins at its present use.
        Path("/proc/self/clear_refs").write_text("5")
        base = status_bytes("VmRSS")
        hidden = torch.randn(sequence, 1, config.model.hidden_size, requires_grad=True)
        times = [time_of(lambda: run(hidden))]
        peak = status_bytes("VmHWM")
        # A first pass finds no memory that it may use again, so that it alone would lengthen long sequences.
        while sum(times) < LEAST_TIME_S or len(times) < LEAST_PASSES:
            times.append(time_of(lambda: run(hidden)))
    return {"time": min(times), "memory": (peak - base) / 1e6}


def configured(name: str, overrides: Sequence[str]) -> RunConfig:
    """Return a run of one layer, in float32."""
    return resolve(name, overrides=["model.layers=1", "model.vocab_size=64", "training.dtype=fp32", *overrides])


def layer(config: RunConfig, device: torch.device) -> torch.nn.Module:
    """Build the attention of such a run, which keeps its gradients as any module of torch."""
    from efficientbench.model.gpt import build_stages

    attention: torch.nn.Module = build_stages(config, device)[0].decoder.layers[0].self_attention
    for module in attention.modules():
        module.gradient_accumulation_fusion = False  # there is no buffer of gradients here
    return attention


def status_bytes(key: str) -> int:
    """Return a size that the kernel reports of this process (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) * 1024


def exponent(values: dict[int, float]) -> float:
    """Return the slope of the least-squares line through log(value) over log(sequence)."""
    logs = [(math.log(sequence), math.log(value)) for sequence, value in values.items()]
    return statistics.linear_regression(*zip(*logs, strict=True)).slope


if __name__ == "__main__":
    main()
