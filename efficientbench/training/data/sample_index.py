"""The training samples: Megatron's index over the training documents, built once for all ranks and runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import Split as MegatronSplit

from efficientbench.basics.errors import TrainingError
from efficientbench.basics.files import disk_errors_explained, exclusive_lock
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokens.cached_files import cached_file, is_intact
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.splitting import Split

# Runs share Megatron's sample indices in a cache on disk.
#
# Megatron would read them by `numpy.load(allow_pickle=True)`: whoever can write to the cache could run code in every
# run that reads it, and a damaged file would end the run or select other samples. Here Megatron builds indices and
# never sees the cache: they are read only as plain arrays, after a check of their checksums.


logger = logging.getLogger(__name__)


def load_or_build(paths: Sequence[Path], build: Callable[[], tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """Return the arrays at `paths`, memory-mapped. On rank 0, build and write all of them if one is unusable.

    The other ranks call this when rank 0 has finished.

    Raises:
        TrainingError: another rank cannot use the files of rank 0.
        DataError: the disk is full, or the cache cannot be written.
    """
    found = [_load(path) for path in paths]
    loaded = tuple(array for array in found if array is not None)
    if len(loaded) == len(paths):
        return loaded
    if dist.get_rank() != 0:
        raise TrainingError(
            f"{paths[found.index(None)]}: rank {dist.get_rank()} cannot use the index that rank 0 has just written; "
            "data.cache must be a folder that all nodes share"
        )
    built = build()
    with disk_errors_explained(paths[0].parent):
        for path, array in zip(paths, built, strict=True):
            logger.info("writing %s", path)
            with cached_file(path) as stream:
                np.save(stream, array, allow_pickle=False)
    return built


def _load(path: Path) -> np.ndarray | None:
    """Return a file's array of integers; None if the file is missing, or (with a warning) damaged or something else."""
    if not is_intact(path):
        return None
    try:
        # Unlike `numpy.load` this reads no format but .npy, and no objects.
        array: np.ndarray = np.lib.format.open_memmap(path, mode="r")
        problem = None if array.dtype.kind in "iu" else f"holds {array.dtype}, not whole numbers"
    except Exception as error:  # a hostile header makes numpy's parser fail in many ways
        problem = f"is no plain array: {error}"
    if problem is None:
        return array
    logger.warning("%s %s: it is not used", path, problem)
    return None


@dataclass(frozen=True)
class Vocabulary:
    """The attributes that Megatron's datasets read of a tokenizer."""

    vocab_size: int
    eod: int
    unique_identifiers: dict[str, str]


@dataclass
class _TrainingConfig(GPTDatasetConfig):
    """Megatron's configuration, with our own choice of training documents and our own cache."""

    index_folder: Path = Path()
    """The folder of the cached indices."""
    documents: dict[str, np.ndarray] = field(default_factory=dict)
    """Prefix → numbers of the training sequences in the `.idx`."""
    document_split: str = ""
    """The split that chose the documents, for the index's name."""


class _TrainingDataset(GPTDataset):
    """Megatron's dataset over chosen documents instead of a range, with its indices in our cache."""

    def __init__(
        self,
        indexed_dataset: IndexedDataset,
        dataset_path: str,
        indexed_indices: np.ndarray,
        num_samples: int,
        index_split: MegatronSplit,
        config: _TrainingConfig,
    ) -> None:
        super().__init__(
            indexed_dataset, dataset_path, config.documents[dataset_path], num_samples, index_split, config
        )

    @staticmethod
    def _key_config_attributes() -> list[str]:
        return [*GPTDataset._key_config_attributes(), "document_split"]

    def _build_document_sample_shuffle_indices(self) -> tuple[np.ndarray, ...]:
        return _cached(self, super()._build_document_sample_shuffle_indices, "document", "sample", "shuffle")


class _Blend(BlendedDataset):
    """Megatron's blend, with its indices in our cache."""

    def _build_indices(self) -> tuple[np.ndarray, ...]:
        return _cached(self, super()._build_indices, "dataset", "dataset_sample")


def _cached(
    dataset: _TrainingDataset | _Blend, build: Callable[[], tuple[np.ndarray, ...]], *names: str
) -> tuple[np.ndarray, ...]:
    base = f"{dataset.unique_description_hash}-{type(dataset).__name__.removeprefix('_')}"
    return load_or_build([dataset.config.index_folder / f"{base}-{name}_index.npy" for name in names], build)


class _Builder(BlendedMegatronDatasetBuilder):
    @staticmethod
    def build_generic_dataset(kind: type, *arguments: Any) -> Any:
        kind = _Blend if kind is BlendedDataset else kind
        return BlendedMegatronDatasetBuilder.build_generic_dataset(kind, *arguments)


def open_training(
    config: RunConfig, samples: int, prefixes: Sequence[Path], splits: Sequence[Split], vocabulary: Vocabulary
) -> GPTDataset | BlendedDataset:
    """Build or open the training samples of a run; all ranks must call this together.

    Args:
        config: the run's configuration.
        samples: number of samples that training draws, in as many epochs as necessary.
        prefixes: prefix of each source's corpus.
        splits: split of each source, with its training documents.
        vocabulary: the tokenizer's vocabulary.

    Raises:
        TrainingError: a source has no training document.
    """
    for prefix, split in zip(prefixes, splits, strict=True):
        if not len(split.training):
            raise no_document(config, prefix, "training")
    cache = Path(config.data.cache).absolute() / "index"
    dataset_config = _TrainingConfig(
        random_seed=config.order_seed,
        sequence_length=config.training.seq_len,
        blend=([str(prefix) for prefix in prefixes], list(config.data.weights) if len(prefixes) > 1 else None),
        split="1,0,0",
        # The empty string: Megatron reads and writes no index. None would mean a folder beside the tokens.
        path_to_cache="",
        index_folder=cache,
        tokenizer=vocabulary,
        reset_position_ids=False,
        # Megatron would end attention by masks: model/documents.py does it without.
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        # The fraction by which the samples of each source must exceed its share. Shares are rounded up, which makes a
        # blend of n sources up to n - 1 samples longer than requested, and Megatron draws from a source as soon as it
        # is behind. So a source of weight w and share s is drawn at most s + w (n - 1) + 1 times. Megatron's own
        # surplus of 0.5 % is too small for few samples, and the run would end with an error.
        mid_level_dataset_surplus=max(0.005, len(prefixes) / samples),
        documents={
            str(prefix): IndexedDocuments(prefix).sequences(split.training).astype(np.int32)
            for prefix, split in zip(prefixes, splits, strict=True)
        },
        document_split=",".join(f"{part:g}" for part in config.data.split),
    )
    cache.mkdir(parents=True, exist_ok=True)
    # Megatron's builder lets rank 0 build first, but does not lock out other runs.
    with exclusive_lock(cache / "lock") if dist.get_rank() == 0 else contextlib.nullcontext():
        return _Builder(_TrainingDataset, (samples, 0, 0), lambda: True, dataset_config).build()[0]


def no_document(config: RunConfig, prefix: Path, part: str) -> TrainingError:
    """Return the error for a split with an empty part."""
    return TrainingError(
        f"{prefix}: the {part} split (data.split={list(config.data.split)}) has no document with a text of its own; "
        "more documents or another split would give it some"
    )
