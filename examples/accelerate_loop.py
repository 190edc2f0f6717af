"""A loop of accelerate, measured; `python examples/accelerate_loop.py [FOLDER]`, or `accelerate launch` in front."""

from __future__ import annotations

import sys

import torch

from efficientbench.metrics import EfficiencyMonitor

try:
    from accelerate import Accelerator
except ModuleNotFoundError:
    sys.exit("this example needs accelerate, which is not installed: pip install accelerate")

accelerator = Accelerator()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(256, 128), torch.nn.Linear(128, 256))
optimizer = torch.optim.AdamW(model.parameters())
texts = torch.utils.data.DataLoader(torch.randint(256, (12 * 8 * accelerator.num_processes, 65)), batch_size=8)
model, optimizer, texts = accelerator.prepare(model, optimizer, texts)

monitor = EfficiencyMonitor(barrier=accelerator.wait_for_everyone, warmup_steps=2, rank=accelerator.process_index)
with monitor:
    for batch in texts:
        # Every rank counts its own tokens.
        with monitor.step(tokens=8 * 64):
            logits = model(batch[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
print(monitor.summary())
folder = sys.argv[1] if len(sys.argv) > 1 else "output/own_loops/accelerate_loop"
whole = accelerator.unwrap_model(model)
print(monitor.save(folder, seq_len=64, micro_batch_size=8, model=whole, flops_per_token=6 * 128 * 256))
