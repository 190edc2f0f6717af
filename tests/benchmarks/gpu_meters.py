"""On an NVIDIA GPU: its energy counter against power integrated, and MFU by our formula against a large matmul.

NOT RUN YET: written where no GPU was at hand. A minute of real training under both meters; they should agree within
5 %. Then a square bf16 matmul, whose FLOP/s over the table's peak must be what `flops_utilization` says.

    python3 tests/benchmarks/gpu_meters.py [--seconds 60] [--size 8192] [--write]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from support.measured import Figure, add_write, write_measured
from torch.nn import functional as F

from efficientbench.devices.registry import find_device
from efficientbench.metrics import EfficiencyMonitor, NvmlSensor, describe, merge
from efficientbench.metrics.definitions import flops_utilization
from efficientbench.metrics.hardware import peak_flops
from efficientbench.metrics.monitoring.measurement import RunMeasurement
from efficientbench.metrics.sensors.base import Counters

TOLERANCE = 0.05
BATCH, LENGTH, WIDTH, LAYERS, WORDS = 8, 1024, 1024, 8, 32_000


class PolledNvml(NvmlSensor):
    """Without the counter, so that energy is power integrated."""

    def counters(self) -> dict[str, Counters]:
        return {}


def language_model() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    return torch.nn.ModuleDict(
        {
            "embedding": torch.nn.Embedding(WORDS, WIDTH),
            "body": torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
            "head": torch.nn.Linear(WIDTH, WORDS),
        }
    )


def train(seconds: float) -> tuple[RunMeasurement, RunMeasurement]:
    """Train for so long; the same run by the counter and by integrated power."""
    device = torch.accelerator.current_accelerator()
    model = language_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    words = torch.randint(WORDS, (BATCH, LENGTH + 1), device=device)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(LENGTH, device=device)
    counted = EfficiencyMonitor([NvmlSensor(indices=[0])], warmup_steps=10)
    polled = EfficiencyMonitor([PolledNvml(indices=[0])], warmup_steps=10)
    with counted, polled:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            with counted.step(BATCH * LENGTH), polled.step(BATCH * LENGTH):
                with torch.autocast(device.type, torch.bfloat16):
                    hidden = model["body"](model["embedding"](words[:, :-1]), mask=mask, is_causal=True)
                    logits = model["head"](hidden)
                loss = F.cross_entropy(logits.float().flatten(0, 1), words[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return merge([counted.finish()]), merge([polled.finish()])


def matmul_flops_per_s(size: int, rounds: int = 50) -> float:
    """Measured with the device's own events, and by no part of the monitor."""
    device = torch.accelerator.current_accelerator()
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(5):
        left @ right
    begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(rounds):
        left @ right
    end.record()
    torch.accelerator.synchronize()
    return rounds * 2 * size**3 / (begin.elapsed_time(end) / 1e3)


def matmul_utilization(size: int, peak: float, rounds: int = 50) -> float:
    """The same matmuls as steps of the monitor, and `flops_utilization` of its window."""
    device = torch.accelerator.current_accelerator()
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    with EfficiencyMonitor([], warmup_steps=5) as monitor:
        for _ in range(rounds + 5):
            with monitor.step(tokens=1):
                left @ right
    run = merge([monitor.finish()])
    return flops_utilization(rounds * 2 * size**3, run.window_s, 1, peak)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--size", type=int, default=8192, help="rows of the square matrices")
    add_write(parser)
    arguments = parser.parse_args()
    if not torch.accelerator.is_available():
        print("no accelerator is here")
        return 1
    counted, polled = train(arguments.seconds)
    print(describe(counted))
    if counted.energy_j is None or polled.energy_j is None:
        print(f"no comparison: {counted.unavailable.get('energy_j') or polled.unavailable['energy_j']}")
        return 1
    difference = polled.energy_j / counted.energy_j - 1
    print(f"counter {counted.energy_j:,.0f} J, integrated power {polled.energy_j:,.0f} J: {difference:+.2%}")
    name = counted.device_names[0]
    peak, source = peak_flops(name, "bf16")
    if peak is None:
        print(f"no MFU: {source}")
        return 1
    measured = matmul_flops_per_s(arguments.size)
    formula = matmul_utilization(arguments.size, peak)
    print(f"matmul {measured / 1e12:,.1f} TFLOP/s, {measured / peak:.1%} of {source}; by our formula {formula:.1%}")
    if arguments.write:
        figures = {
            "energy": Figure("energy, integrated power over the counter, difference", difference * 100, "%"),
            "matmul_measured": Figure("utilization of a square bf16 matmul, by events", measured / peak * 100, "%"),
            "matmul_formula": Figure("the same by our formula", formula * 100, "%"),
        }
        conditions = f"{arguments.seconds:g} s of training, matmul of {arguments.size:,} rows"
        write_measured(__file__, find_device("cuda"), figures, conditions)
    agree = abs(difference) < TOLERANCE and abs(formula / (measured / peak) - 1) < TOLERANCE
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
