"""Read DeepSpeed's files of a checkpoint as plain data, since DeepSpeed itself unpickles whatever they hold."""

from __future__ import annotations

import os
import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any

import deepspeed.runtime.engine
import torch
from deepspeed.checkpoint.constants import OPTIMIZER_STATE_DICT, PARAM_SLICE_MAPPINGS
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum

from efficientbench.basics.errors import CheckpointError
from efficientbench.running.failures import ran_out_of_memory
from efficientbench.training.checkpoints.read import only_members_of

ALLOWED = [ZeroStageEnum, LossScaler, (only_members_of(ZeroStageEnum), "builtins.getattr")]
"""The types that the files may name besides tensors, numbers and texts."""


class PlainFiles(TorchCheckpointEngine):
    """A checkpoint engine of DeepSpeed that reads only files in the manifest, and only plain data."""

    def __init__(self, config: Any, folder: Path | None, files: Collection[str]) -> None:
        """Read nothing yet.

        Args:
            config: DeepSpeed's configuration of the engine.
            folder: the checkpoint that may be read; None: no file may be read.
            files: the files' names in the checkpoint's manifest.
        """
        super().__init__(config)
        self._folder, self._files = folder, files
        self.written: list[Path] = []
        """The files that this rank has written since the list was last emptied."""

    def save(self, state_dict: Any, path: str) -> None:
        """Write a file, without the slice mappings, which use a class and which only DeepSpeed's converter reads."""
        optimizer = state_dict.get(OPTIMIZER_STATE_DICT)
        if optimizer is not None and PARAM_SLICE_MAPPINGS in optimizer:
            kept = {key: value for key, value in optimizer.items() if key != PARAM_SLICE_MAPPINGS}
            state_dict = {**state_dict, OPTIMIZER_STATE_DICT: kept}
        super().save(state_dict, path)
        self.written.append(Path(path))

    def load(self, path: str, map_location: Any = None) -> Any:
        """Return a file's content.

        Raises CheckpointError: the manifest lacks the file, or the file holds anything but plain data.
        """
        if self._folder is None or os.path.relpath(path, self._folder) not in self._files:
            raise CheckpointError(f"{path}: refused, the checkpoint's manifest lacks it")
        return read_plain(Path(path), map_location)


def read_plain(path: Path, map_location: Any = "cpu") -> Any:
    """Return the content of a file of DeepSpeed. Raises CheckpointError: it is damaged or not plain data."""
    try:
        with torch.serialization.safe_globals(ALLOWED):
            return torch.load(path, map_location=map_location, weights_only=True)
    except (CheckpointError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path}: refused, {str(error).partition(chr(10))[0]}") from None
    # A damaged pickle may raise anything.
    except Exception as error:
        if ran_out_of_memory(error):
            raise
        first = str(error).partition("\n")[0]
        raise CheckpointError(f"{path}: damaged ({type(error).__name__}: {first})") from None


def use_plain_files(folder: Path | None, files: Collection[str]) -> None:
    """Make DeepSpeed write and read checkpoints with `PlainFiles` in this process; see there for the arguments.

    DeepSpeed has no setting for it.
    """
    deepspeed.runtime.engine.create_checkpoint_engine = lambda config_params, **_: PlainFiles(
        config_params, folder, files
    )
