"""Check a small training step on one device, in a process of its own, against the CPU's float32.

A broken device may hang or end its process. The process runs `python -m efficientbench.doctor.step TYPE INDEX DTYPE`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from efficientbench.devices.base import Device
from efficientbench.devices.registry import find_device
from efficientbench.doctor.check import Check
from efficientbench.launchers.processes.worker_process import module_command

if TYPE_CHECKING:
    import torch

TIME_LIMIT_S = 300
"""Seconds for a step; the first one on an NPU compiles its operators."""
TOLERANCE = {"fp32": 1e-4, "bf16": 5e-2, "fp16": 1e-2}
"""Largest relative difference from the CPU's loss that the dtype's accuracy explains over a dozen operations."""


def step_checks(device: Device) -> list[Check]:
    """Check a forward pass, a backward pass and an AdamW step on each device of a type, one after the other."""
    dtype = next(name for name in ("bf16", "fp16", "fp32") if name not in device.unsupported_dtypes())
    return [_step(device.type, index, dtype) for index in range(device.count())]


def _step(device_type: str, index: int, dtype: str) -> Check:
    name = f"step on {index}"
    command = module_command("efficientbench.doctor.step", device_type, str(index), dtype)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Check(name, False, f"no {dtype} step within {TIME_LIMIT_S} s", "a reset of this device")
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        errors = done.stderr.strip().splitlines()
        return Check(name, False, f"the {dtype} step failed: {errors[-1] if errors else f'status {done.returncode}'}")
    step = json.loads(lines[-1])
    loss, next_loss, wanted, total = step["loss"], step["next_loss"], step["wanted"], step["total_bytes"]
    free = f", {step['free_bytes'] / 1e9:.1f} of {total / 1e9:.1f} GB free" if total else ""
    result = f"{dtype}: loss {loss:.4f} and {next_loss:.4f} after a step (CPU: {wanted:.4f}){free}"
    passed = abs(loss - wanted) <= TOLERANCE[dtype] * wanted and next_loss < loss
    return Check(name, passed, result, "" if passed else "a device that computes as the CPU does")


def take_step(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Return the loss of a small causal attention model before and after one step; all devices draw from one seed."""
    import torch
    from torch.nn import functional as F

    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).mul(0.1).to(device, dtype)

    weights = [drawn(64, 192), drawn(64, 64), drawn(64, 256), drawn(256, 64), drawn(64, 512)]
    tokens, targets = drawn(4, 128, 64), torch.randint(0, 512, (4 * 128,), generator=generator).to(device)
    for weight in weights:
        weight.requires_grad_()
    optimizer = torch.optim.AdamW(weights, lr=1e-2)

    def loss() -> torch.Tensor:
        qkv, out, up, down, head = weights
        q, k, v = (tokens @ qkv).view(4, 128, 3, 4, 16).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(4, 128, 64)
        hidden = tokens + mixed @ out
        hidden = hidden + F.silu(hidden @ up) @ down
        return F.cross_entropy((hidden @ head).float().view(-1, 512), targets)

    before = loss()
    before.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return before.item(), loss().item()


def main() -> None:
    """Take the step, and print its losses and the device's memory as JSON."""
    import torch

    device_type, index, name = sys.argv[1:4]
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
    device = find_device(device_type)
    # Before any backward pass: torch counts a process's devices at its first one, and never again.
    place = device.prepare(int(index))
    loss, next_loss = take_step(place, dtype)
    device.synchronize()
    wanted, _ = take_step(torch.device("cpu"), torch.float32)
    allocator: Any = device.allocator()
    free, total = allocator.mem_get_info(int(index)) if allocator is not None else (0, 0)
    step = {"loss": loss, "next_loss": next_loss, "wanted": wanted, "free_bytes": free, "total_bytes": total}
    print(json.dumps(step))


if __name__ == "__main__":
    main()
