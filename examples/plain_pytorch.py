"""A plain PyTorch loop, measured; `python examples/plain_pytorch.py [FOLDER]`. Needs torch and `metrics`."""

from __future__ import annotations

import sys

import torch

from efficientbench.metrics import EfficiencyMonitor  # 1

device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(256, 128), torch.nn.Linear(128, 256)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
batches = [torch.randint(256, (8, 65)).to(device) for _ in range(12)]
flops = 6 * 128 * 256  # of a token: two for each weight of a matrix forward, and four backward

monitor = EfficiencyMonitor(warmup_steps=2)  # 2
with monitor:  # 3
    for batch in batches:
        with monitor.step(tokens=8 * 64):  # 4
            logits = model(batch[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
print(monitor.summary())  # 5
folder = sys.argv[1] if len(sys.argv) > 1 else "output/own_loops/plain_pytorch"
print(monitor.save(folder, seq_len=64, micro_batch_size=8, model=model, flops_per_token=flops))  # 6
