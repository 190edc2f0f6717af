"""On an NVIDIA GPU: its energy counter against power integrated, and MFU by our formula against a large matmul.

NOT RUN YET: written where no GPU was at hand. A minute of real training under both meters; they should agree within
5 %. Then a square bf16 matmul, whose FLOP/s over the table's peak must be what `flops_utilization` says.

    python3 tests/benchmarks/gpu_meters.py [--seconds 60] [--size 8192] [--write]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from support.measured import Figure, options, report
from torch.nn import functional as F

from efficientbench.devices.registry import find_device
from efficientbench.metrics import EfficiencyMonitor, NvmlSensor, describe, merge
from efficientbench.metrics.formulas.definitions import flops_utilization
from efficientbench.metrics.monitoring.measurement import RunMeasurement
from efficientbench.metrics.sensors.base import Counters
from efficientbench.metrics.sensors.hardware import peak_flops

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


def matmul_utilization(size: int, peak: float, rounds: int = 50) -> tuple[float, float]:
    """Return the utilization of matmuls by the device's own events, and by `flops_utilization` of a monitor's window.

    No part of the monitor takes part in the first.
    """
    device = torch.accelerator.current_accelerator()
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    for number in range(rounds + 5):
        if number == 5:  # the rest was warm-up
            begin.record()
        left @ right
    end.record()
    torch.accelerator.synchronize()
    with EfficiencyMonitor([], warmup_steps=5) as monitor:
        for _ in range(rounds + 5):
            with monitor.step(tokens=1):
                left @ right
    flops, window_s = rounds * 2 * size**3, merge([monitor.finish()]).window_s
    return flops / (begin.elapsed_time(end) / 1e3) / peak, flops_utilization(flops, window_s, 1, peak)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--size", type=int, default=8192, help="rows of the square matrices")
    arguments = parser.parse_args()
    if not torch.accelerator.is_available():
        sys.exit("no accelerator is here")
    counted, polled = train(arguments.seconds)
    print(describe(counted))
    if counted.energy_j is None or polled.energy_j is None:
        sys.exit(f"no comparison: {counted.unavailable.get('energy_j') or polled.unavailable['energy_j']}")
    peak, source = peak_flops(counted.device_names[0], "bf16")
    if peak is None:
        sys.exit(f"no MFU: {source}")
    difference = polled.energy_j / counted.energy_j - 1
    measured, formula = matmul_utilization(arguments.size, peak)
    figures = {
        "energy": Figure("energy, integrated power over the counter, difference", difference * 100, "%"),
        "matmul_measured": Figure("utilization of a square bf16 matmul, by events", measured * 100, "%"),
        "matmul_formula": Figure("the same by our formula", formula * 100, "%"),
    }
    conditions = f"{arguments.seconds:g} s of training, matmul of {arguments.size:,} rows, peak of {source}"
    report(__file__, arguments, figures, conditions, find_device("cuda"))
    sys.exit(int(max(abs(difference), abs(formula / measured - 1)) >= TOLERANCE))


if __name__ == "__main__":
    main()
