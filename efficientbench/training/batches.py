"""Micro-batches from tokens on disk, in an order that no layout changes.

B = micro-batch, S = sequence.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

from efficientbench.config.layout import context_chunks
from efficientbench.config.schema import RunConfig
from efficientbench.training.errors import TrainingError

Samples: TypeAlias = GPTDataset | BlendedDataset
HostBatch: TypeAlias = tuple[torch.Tensor, ...]
"""Tokens, labels and loss mask of one micro-batch, not yet on the device."""

ATTENDS_ACROSS_DOCUMENTS = True
"""A training sequence holds documents end to end, and a token attends to all before it, those of other documents too.
An end-of-document token separates them, as in GPT-2's and Megatron's default."""

VALIDATION_SEED = 1234
"""Draws the validation's samples, whatever the run's seed is, so that repeats with other seeds validate on one text."""


@dataclass(frozen=True)
class Vocabulary:
    """What Megatron's datasets read of a tokenizer."""

    vocab_size: int
    eod: int
    unique_identifiers: dict[str, str]


@dataclass(frozen=True)
class Batch:
    """One micro-batch of one data-parallel rank, on its device; under context parallelism S is this rank's part."""

    tokens: torch.Tensor
    """[B, S]"""
    labels: torch.Tensor
    """[B, S]: the tokens that follow."""
    loss_mask: torch.Tensor
    """[B, S] float32: 0 leaves a position out of the loss."""


class Batches:
    """Training and validation micro-batches of this rank, each read while the device computes the one before."""

    def __init__(
        self, config: RunConfig, steps: int, prefixes: Sequence[Path], vocabulary: Vocabulary, device: torch.device
    ) -> None:
        """Build or open the sample index; all ranks must call this together.

        Args:
            config: the run.
            steps: optimizer steps that the training split must serve, in as many epochs as that takes.
            prefixes: each source's tokenized corpus, `<prefix>.bin` and `<prefix>.idx`, as `config.data.weights`
                orders them.
            vocabulary: the tokenizer's facts.
            device: where batches go.

        Raises:
            TrainingError: a split without documents, or shorter than one sequence.
        """
        self.config, self.device = config, device
        training = config.training
        self.training_samples = steps * training.global_batch_size
        sizes = (self.training_samples, training.validation_batches * training.global_batch_size)
        self.training, self.validation = _open_datasets(config, sizes, prefixes, vocabulary)
        self._pins = _pins(device)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="batches", initializer=self._begin_reading)
        self._next_step: tuple[int, Future[HostBatch]] | None = None
        """The first sample of the next training step, and the micro-batch that begins with it."""

    def source_tokens(self) -> list[int]:
        """Return the tokens of each source's training documents, in the order of the sources."""
        sources = self.training.datasets if isinstance(self.training, BlendedDataset) else [self.training]
        return [int(source.dataset.sequence_lengths[source.indices].sum(dtype="int64")) for source in sources]

    @property
    def micro_batches(self) -> int:
        """How many micro-batches one rank computes in an optimizer step."""
        training = self.config.training
        replicas = parallel_state.get_data_parallel_world_size()
        return training.global_batch_size // (training.micro_batch_size * replicas)

    def training_step(self, step: int) -> Iterator[Batch]:
        """Yield this rank's micro-batches of one optimizer step; steps count from 1."""
        size = self.config.training.global_batch_size
        return self._micro_batches(self.training, (step - 1) * size, step * size)

    def validation_step(self, index: int) -> Iterator[Batch]:
        """Yield this rank's micro-batches of validation batch `index`, from 0: the same samples in every validation."""
        return self._micro_batches(self.validation, index * self.config.training.global_batch_size)

    def _micro_batches(self, dataset: Samples, first: int, then: int | None = None) -> Iterator[Batch]:
        """Yield those of the global batch from sample `first`; near its end, begin to read the batch from `then`."""
        size, count = self.config.training.micro_batch_size, self.micro_batches
        offset = parallel_state.get_data_parallel_rank() * count * size
        coming = self._reading(dataset, first + offset)
        for index in range(count):
            tokens, labels, loss_mask = (part.to(self.device, non_blocking=True) for part in coming.result())
            if index + 1 < count:
                coming = self._read(dataset, first + offset + (index + 1) * size)
            elif then is not None and then < self.training_samples:
                self._next_step = (then + offset, self._reading(dataset, then + offset))
            yield Batch(tokens, labels, loss_mask)

    def _reading(self, dataset: Samples, start: int) -> Future[HostBatch]:
        """Return the micro-batch of samples from `start`, perhaps begun before: several stages of a rank read one."""
        if dataset is self.training and self._next_step is not None and self._next_step[0] == start:
            return self._next_step[1]
        return self._read(dataset, start)

    def _read(self, dataset: Samples, start: int) -> Future[HostBatch]:
        return self._reader.submit(self._read_now, dataset, start)

    def _begin_reading(self) -> None:
        if self._pins:
            # Without this the thread would use device 0, and all ranks would take memory there.
            torch.get_device_module(self.device).set_device(self.device.index)

    def _read_now(self, dataset: Samples, start: int) -> HostBatch:
        samples = [dataset[sample] for sample in range(start, start + self.config.training.micro_batch_size)]
        parts = (
            _own_part(torch.stack([sample[key] for sample in samples])) for key in ("tokens", "labels", "loss_mask")
        )
        # The device copies from pinned memory by itself, after the work that is queued there.
        return tuple(part.pin_memory() if self._pins else part for part in parts)


def _pins(device: torch.device) -> bool:
    """Return whether memory of the host can be pinned for this device."""
    # torch 2.6 raises an error when it is asked for an accelerator that is not there.
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None or accelerator.type != device.type:
        return False
    try:
        torch.empty(1).pin_memory()
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _own_part(sequences: torch.Tensor) -> torch.Tensor:
    """Return this context-parallel rank's part of the sequences: [B, sequence] → [B, S]."""
    size, rank = parallel_state.get_context_parallel_world_size(), parallel_state.get_context_parallel_rank()
    if size == 1:
        return sequences
    chunks = sequences.chunk(2 * size, dim=1)
    return torch.cat([chunks[index] for index in context_chunks(rank, size)], dim=1)


def _open_datasets(
    config: RunConfig, sizes: tuple[int, int], prefixes: Sequence[Path], vocabulary: Vocabulary
) -> tuple[Samples, Samples]:
    cache = Path(config.data.cache).absolute() / "index"
    dataset_config = GPTDatasetConfig(
        random_seed=config.training.seed,
        sequence_length=config.training.seq_len,
        blend=([str(prefix) for prefix in prefixes], list(config.data.weights) if len(prefixes) > 1 else None),
        split=",".join(f"{part:g}" for part in config.data.split),
        path_to_cache=str(cache),
        tokenizer=vocabulary,
        reset_position_ids=False,
        reset_attention_mask=not ATTENDS_ACROSS_DOCUMENTS,
        eod_mask_loss=False,
        create_attention_mask=False,
        mid_level_dataset_surplus=blend_surplus(len(prefixes), sizes),
    )

    # The test split is for later evaluation: training draws no sample of it.
    def build(seed: int) -> tuple[Samples | None, Samples | None]:
        seeded = dataclasses.replace(dataset_config, random_seed=seed)
        split = BlendedMegatronDatasetBuilder(GPTDataset, (*sizes, 0), lambda: True, seeded).build()
        return split[0], split[1]

    with _locked(cache):
        training, validation = build(config.training.seed)
        if config.training.seed != VALIDATION_SEED:
            _, validation = build(VALIDATION_SEED)
    for name, dataset in (("training", training), ("validation", validation)):
        if dataset is None:
            raise TrainingError(
                f"{', '.join(map(str, prefixes))}: the {name} split (data.split={list(config.data.split)}) has no "
                "document; more documents or another split would give it some"
            )
    return training, validation


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
