"""How time and memory of an attention layer grow with the sequence: NSA beside GQA, fitted to c · S^a.

    python tests/benchmarks/attention_scaling.py [--size 0.5B] [--threads 2] [--write]

Measures the module with its projections, forward and backward, float32 on the CPU, one sequence in a batch. Each
measurement has a process of its own, so that none finds memory that another left.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import Figure, add_write, write_measured

from efficientbench.devices.cpu import CPU

SEQUENCES = (2048, 4096, 8192, 16384)
VARIANTS = ("nsa", "gqa")
LEAST_TIME_S = 4.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="0.5B", help="size of the matrix whose layer is measured")
    parser.add_argument("--threads", type=int, default=2, help="threads that torch computes with")
    parser.add_argument("--measure", nargs=2, metavar=("VARIANT", "SEQUENCE"), help=argparse.SUPPRESS)
    add_write(parser)
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
        for sequence, one in zip(SEQUENCES, found, strict=True):
            print(f"{variant:4} S={sequence:6} {one['time_s']:8.3f} s  {one['memory_bytes'] / 1e6:8.0f} MB", flush=True)
        for quantity in ("time_s", "memory_bytes"):
            power = exponent([one[quantity] for one in found])
            print(f"{variant:4} {quantity} grows as S^{power:.3f}", flush=True)
            name, unit, scale = ("time", "s", 1.0) if quantity == "time_s" else ("memory", "MB", 1e-6)
            figures[f"{variant}_{name}_exponent"] = Figure(f"{variant.upper()}: {name} grows as S^a: a", power)
            for sequence, one in ((SEQUENCES[0], found[0]), (SEQUENCES[-1], found[-1])):
                what = f"{variant.upper()}: {name} at {sequence:,} tokens"
                figures[f"{variant}_{name}_{sequence}"] = Figure(what, one[quantity] * scale, unit)
    if arguments.write:
        conditions = f"{arguments.size}, float32, one sequence, {arguments.threads} threads, least of several passes"
        write_measured(__file__, CPU(), figures, conditions)


def measure(name: str, sequence: int, threads: int) -> dict[str, float]:
    """Fewest seconds of a forward and backward pass over several, and the memory that they add to the process."""
    import torch

    from efficientbench.config.load import resolve

    CPU().prepare(0)
    from efficientbench.config.schema import ParallelConfig
    from efficientbench.model.gpt import build_stages
    from efficientbench.training import groups

    torch.set_num_threads(threads)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    config = resolve(name, overrides=["model.layers=1", "model.vocab_size=64", "training.dtype=fp32"])
    with groups.model_parallel(ParallelConfig(), seed=0):
        attention = build_stages(config, torch.device("cpu"))[0].decoder.layers[0].self_attention
        for module in (attention.linear_qkv, attention.linear_proj, getattr(attention, "linear_gate", None)):
            if module is not None:
                module.gradient_accumulation_fusion = False  # there is no buffer of gradients here
        torch.manual_seed(0)
        run(attention, torch.randn(64, 1, config.model.hidden_size))  # warm-up
        base = forget_peak()
        hidden = torch.randn(sequence, 1, config.model.hidden_size, requires_grad=True)
        times = [run(attention, hidden)]
        peak = status_bytes("VmHWM")
        while sum(times) < LEAST_TIME_S:
            times.append(run(attention, hidden))
    torch.distributed.destroy_process_group()
    return {"time_s": min(times), "memory_bytes": peak - base}


def forget_peak() -> int:
    """Makes the process's peak of memory what it uses now, in bytes, and returns that (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    return status_bytes("VmRSS")


def status_bytes(key: str) -> int:
    """A size that the kernel keeps of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) * 1024


def run(attention: object, hidden: object) -> float:
    """Seconds of one forward and backward pass."""
    begin_s = time.perf_counter()
    out, _ = attention(hidden, attention_mask=None)  # type: ignore[operator]
    out.backward(out.detach())
    return time.perf_counter() - begin_s


def exponent(values: list[float]) -> float:
    """Slope of the least-squares line through log(value) over log(sequence)."""
    x, y = [math.log(sequence) for sequence in SEQUENCES], [math.log(value) for value in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((each - mean_x) ** 2 for each in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread


if __name__ == "__main__":
    main()
