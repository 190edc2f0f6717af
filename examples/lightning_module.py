"""A Lightning Trainer, measured by a callback; `python examples/lightning_module.py [FOLDER]`."""

from __future__ import annotations

import sys
from typing import Any

import torch

from efficientbench.metrics import EfficiencyMonitor

try:
    import lightning
except ModuleNotFoundError:
    sys.exit("this example needs lightning, which is not installed: pip install lightning")


class Measured(lightning.Callback):
    """Times the training batches, of `batch_size` sequences with `seq_len` tokens to learn on each rank.

    With `accumulate_grad_batches` above 1 a step of the record is one batch, not one update.
    """

    def __init__(self, folder: str, batch_size: int, seq_len: int, flops_per_token: float | None = None) -> None:
        self.monitor = EfficiencyMonitor(warmup_steps=2)
        self._folder, self._batch_size, self._seq_len, self._flops = folder, batch_size, seq_len, flops_per_token

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.monitor.start()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.monitor.begin_step()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.monitor.end_step(tokens=self._batch_size * self._seq_len)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.monitor.save(
            self._folder,
            seq_len=self._seq_len,
            micro_batch_size=self._batch_size,
            model=pl_module,
            flops_per_token=self._flops,
        )


class Model(lightning.LightningModule):
    """Predicts each token from the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Embedding(256, 128), torch.nn.Linear(128, 256))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """Return the loss of a batch [B, T + 1]."""
        logits = self.layers(batch[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW on all parameters."""
        return torch.optim.AdamW(self.parameters())


lightning.seed_everything(0)
folder = sys.argv[1] if len(sys.argv) > 1 else "output/own_loops/lightning_module"
measured = Measured(folder, batch_size=8, seq_len=64, flops_per_token=6 * 128 * 256)
trainer = lightning.Trainer(
    max_epochs=1,
    callbacks=[measured],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randint(256, (12 * 8, 65)), batch_size=8))
print(measured.monitor.summary())
