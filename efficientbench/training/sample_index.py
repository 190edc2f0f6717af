"""The training samples: Megatron's index over the documents that are trained on, built once for all ranks and runs."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch.distributed as dist
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import Split as MegatronSplit

from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.indexed_documents import IndexedDocuments
from efficientbench.data_tools.splitting import Split
from efficientbench.training.errors import TrainingError

ATTENDS_ACROSS_DOCUMENTS = True
"""A training sequence holds documents end to end, and a token attends to all before it, those of other documents too.
An end-of-document token separates them, as in GPT-2's and Megatron's default."""


@dataclass(frozen=True)
class Vocabulary:
    """What Megatron's datasets read of a tokenizer."""

    vocab_size: int
    eod: int
    unique_identifiers: dict[str, str]


@dataclass
class _TrainingConfig(GPTDatasetConfig):
    """Megatron's configuration, with our own choice of the training documents."""

    documents: dict[str, np.ndarray] = field(default_factory=dict)
    """Prefix → numbers of the sequences in the `.idx` that are trained on."""
    document_split: str = ""
    """What chose them, for the name of the index."""


class _TrainingDataset(GPTDataset):
    """Megatron's dataset over the chosen documents, instead of a range of all."""

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


def open_training(
    config: RunConfig, samples: int, prefixes: Sequence[Path], splits: Sequence[Split], vocabulary: Vocabulary
) -> GPTDataset | BlendedDataset:
    """Build or open the samples of a run; all ranks must call this together.

    Args:
        config: the run.
        samples: that training draws, in as many epochs as that takes.
        prefixes: each source's pair.
        splits: of the sources, whose training documents are drawn from.
        vocabulary: the tokenizer's facts.

    Raises:
        TrainingError: a source without a training document.
    """
    for prefix, split in zip(prefixes, splits, strict=True):
        if not len(split.training):
            raise no_document(config, prefix, "training")
    cache = Path(config.data.cache).absolute() / "index"
    dataset_config = _TrainingConfig(
        random_seed=config.training.seed,
        sequence_length=config.training.seq_len,
        blend=([str(prefix) for prefix in prefixes], list(config.data.weights) if len(prefixes) > 1 else None),
        split="1,0,0",
        path_to_cache=str(cache),
        tokenizer=vocabulary,
        reset_position_ids=False,
        reset_attention_mask=not ATTENDS_ACROSS_DOCUMENTS,
        eod_mask_loss=False,
        create_attention_mask=False,
        mid_level_dataset_surplus=blend_surplus(len(prefixes), [samples]),
        documents={
            str(prefix): IndexedDocuments(prefix).sequences(split.training).astype(np.int32)
            for prefix, split in zip(prefixes, splits, strict=True)
        },
        document_split=",".join(f"{part:g}" for part in config.data.split),
    )
    with _locked(cache):
        built = BlendedMegatronDatasetBuilder(_TrainingDataset, (samples, 0, 0), lambda: True, dataset_config).build()
    return built[0]


def no_document(config: RunConfig, prefix: Path, part: str) -> TrainingError:
    """Return the error for a split that leaves one of its parts empty."""
    return TrainingError(
        f"{prefix}: the {part} split (data.split={list(config.data.split)}) has no document with a text of its own; "
        "more documents or another split would give it some"
    )


def blend_surplus(sources: int, sizes: Sequence[int]) -> float:
    """Return by what fraction the samples of each source must exceed its share of the smallest split.

    Shares are rounded up, which makes a blend up to `sources - 1` samples longer than was asked, and Megatron draws a
    source for it as soon as it is behind: a source of weight w and share s is drawn at most s + w (sources - 1) + 1
    times. Megatron's own surplus of 0.5 % falls short of this for small splits, and the run would end with an error.
    """
    return max(0.005, sources / min(sizes))


@contextlib.contextmanager
def _locked(cache: Path) -> Iterator[None]:
    # Megatron's builder lets rank 0 write the index first, but does not lock out other runs.
    if dist.get_rank() != 0:
        yield
        return
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        building = cache / "building"
        if building.exists():
            _remove_unfinished(cache, building.stat().st_mtime)
        building.touch()
        yield
        building.unlink()


def _remove_unfinished(cache: Path, begun_s: float) -> None:
    """Remove what an interrupted build has written, since Megatron takes every file that exists for complete."""
    for index in cache.glob("*.npy"):
        if index.stat().st_mtime >= begun_s:
            index.unlink()
