"""Send a run's scalars to TensorBoard while it trains, and to Weights & Biases where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from efficientbench.config.schema import RunConfig
from efficientbench.metrics.records.record import FIGURES, RunRecord
from efficientbench.metrics.records.sinks.tensorboard import TensorBoardLog
from efficientbench.metrics.records.sinks.wandb_log import WandbLog
from efficientbench.running.output_folder import OutputFolder


class Sinks:
    """All sinks of one run."""

    def __init__(self, config: RunConfig, folder: OutputFolder, resumed_after: int) -> None:
        """Open the sinks.

        Args:
            config: the run's configuration; `config.wandb` asks for Weights & Biases.
            folder: the run's folder.
            resumed_after: the step after which this attempt resumes; 0 for the first one.

        Raises:
            MetricsError: a sink cannot be opened.
        """
        self._tensorboard = TensorBoardLog(folder.tensorboard)
        self._wandb: WandbLog | None = None
        if config.wandb is not None:
            settings = {**config.model_dump(mode="json"), "resumed_after": resumed_after}
            self._wandb = WandbLog(config.wandb, folder.path, config.name, settings)

    def scalars(self, step: int, values: Mapping[str, float | None]) -> None:
        """Write values by name at a step; skip None."""
        self._tensorboard.scalars(step, values)
        if self._wandb is not None:
            self._wandb.scalars("step", step, values)

    def by_tokens(self, tokens: int, name: str, value: float) -> None:
        """Write a value by the number of tokens trained on so far."""
        values = {f"by_tokens/{name}": value}
        self._tensorboard.scalars(tokens, values)
        if self._wandb is not None:
            self._wandb.scalars("tokens", tokens, values)

    def figures(self, record: RunRecord) -> None:
        """Send the figures of the record to Weights & Biases, which has a table of runs."""
        if self._wandb is not None:
            self._wandb.figures({name: getattr(record, name) for name in FIGURES})

    def close(self) -> None:
        """Close the sinks."""
        self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.close()
