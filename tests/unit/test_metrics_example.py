"""A plain PyTorch loop, measured in five lines, with nothing of the harness loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from metrics import EfficiencyMonitor, HostSensor, merge

BATCHES, WARMUP, TOKENS = 12, 2, 64


def test_a_plain_loop_is_measured_in_five_lines() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.randn(TOKENS, 256) for _ in range(BATCHES)]

    monitor = EfficiencyMonitor([HostSensor()], warmup_steps=WARMUP)  # 1
    with monitor:  # 2
        for batch in batches:
            with monitor.step(tokens=len(batch)):  # 3
                loss = (model(batch) - batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    run = merge([monitor.finish()])  # 4
    print(f"{run.tokens / sum(run.step_times_s):.0f} tokens/s, {run.amu_gb:.2f} GB, PCU {run.pcu:.0%}")  # 5

    assert len(run.step_times_s) == BATCHES - WARMUP
    assert run.tokens == (BATCHES - WARMUP) * TOKENS
    assert sum(run.step_times_s) == pytest.approx(run.window_s, rel=0.5)
    assert run.amu_gb is not None
    assert run.amu_gb > 0.05  # torch alone is larger
    assert run.pcu is not None


def test_measuring_loads_neither_harness_nor_megatron_nor_torch() -> None:
    program = (
        "import sys\nfrom metrics import EfficiencyMonitor, HostSensor, merge\n"
        "with EfficiencyMonitor([HostSensor()]) as monitor:\n"
        "    with monitor.step(tokens=1): pass\n"
        "assert merge([monitor.finish()]).tokens == 1\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'torch', 'megatron', 'efficientbench', 'pydantic', 'numpy'}, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
