"""Micro-batches from tokens on disk, in an order that does not depend on the layout.

B = micro-batch, S = sequence.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.gpt_dataset import GPTDataset

from efficientbench.config.layout import context_chunks
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.intact import BlockReader
from efficientbench.data_tools.tokens.splitting import SPLITS, Split, split_documents
from efficientbench.model.documents import Documents, bounds_of, positions_of
from efficientbench.training.data.batch import Batch
from efficientbench.training.data.conversations import PackedConversations, open_conversations
from efficientbench.training.data.sample_index import Vocabulary, no_document, open_training
from efficientbench.training.data.validation import ValidationText, choose_documents


class VerifiedReader:
    """Megatron's reader of one `.bin`, with a check of each block that it reads."""

    def __init__(self, reader: Any, blocks: BlockReader) -> None:
        self._reader, self._blocks = reader, blocks

    def read(self, dtype: type[np.number], count: int, offset: int) -> np.ndarray:
        """Return [count] tokens from byte `offset`. Raises DataError if a block is damaged."""
        tokens: np.ndarray = self._reader.read(dtype=dtype, count=count, offset=offset)
        self._blocks.verify(int(offset), int(offset) + tokens.nbytes)
        return tokens


def verify_reads(samples: GPTDataset | BlendedDataset, blocks: Mapping[Path, BlockReader]) -> None:
    """Let `samples` verify the tokens that they read; `blocks`: a corpus's prefix → the verifier of its blocks."""
    for source in samples.datasets if isinstance(samples, BlendedDataset) else [samples]:
        pair = source.dataset
        if Path(pair.path_prefix) in blocks:
            pair.bin_reader = VerifiedReader(pair.bin_reader, blocks[Path(pair.path_prefix)])


Samples: TypeAlias = GPTDataset | BlendedDataset | PackedConversations | ValidationText
HostBatch: TypeAlias = tuple[tuple[torch.Tensor, ...], int, list[list[int]]]
"""One micro-batch on the host: tokens, labels, weights, and positions where attention ends with documents; its number
of targets; and the bounds of those documents."""


class Batches:
    """Training and validation micro-batches of this rank, each read while the device computes the previous one."""

    def __init__(
        self,
        config: RunConfig,
        steps: int,
        prefixes: Sequence[Path],
        vocabulary: Vocabulary,
        device: torch.device,
        blocks: Mapping[Path, BlockReader] | None = None,
    ) -> None:
        """Build or open the sample index; all ranks must call this together.

        Args:
            config: the run's configuration.
            steps: optimizer steps for which to draw samples, in as many epochs as necessary.
            prefixes: prefix of each source's tokenized corpus, `<prefix>.bin` and `<prefix>.idx`, in the order of
                `config.data.weights`.
            vocabulary: the tokenizer's vocabulary.
            device: the device of the micro-batches.
            blocks: a corpus's prefix → the verifier of its blocks as they are read; the other corpora were verified
                beforehand.

        Raises:
            DataError: a block is damaged; also raised while batches are read.
            TrainingError: a split has no documents.
        """
        self.config, self.device = config, device
        training = config.training
        self.training_samples = steps * training.global_batch_size
        cache = Path(config.data.cache).absolute() / SPLITS
        splits = split_documents(prefixes, config.data.split, vocabulary.vocab_size, cache)
        self.training: GPTDataset | BlendedDataset | PackedConversations
        if training.objective != "pretrain":
            # In reinforcement learning the model writes its own training samples; conversations only validate.
            samples = self.training_samples if training.objective == "sft" else 0
            self.training, self.validation = open_conversations(
                config, samples, prefixes[0], splits[0], vocabulary.eod, (blocks or {}).get(prefixes[0])
            )
        else:
            self.training = open_training(config, config.order_samples(steps), prefixes, splits, vocabulary)
            verify_reads(self.training, blocks or {})
            self.validation = ValidationText(open_validation(config, prefixes, splits, blocks or {}), training.seq_len)
        self.duplicates = [split.duplicates for split in splits]
        """Documents of each source that stay in training because their text occurs more than once."""
        self.document_lengths: Counter[int] = Counter()
        """Length → documents, or parts of documents, that this rank has trained on; empty where attention goes on."""
        self._end = vocabulary.eod if config.data.attention_within_documents else None
        self._counted_step = 0
        self._pins = _pins(device)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="batches", initializer=self._begin_reading)
        self._next_step: tuple[int, Future[HostBatch]] | None = None
        """The first sample of the next training step, and the micro-batch that begins with it."""

    def source_tokens(self) -> list[int]:
        """Return the tokens of each source's training documents, in the order of the sources."""
        if isinstance(self.training, PackedConversations):
            return [self.training.tokens]
        sources = self.training.datasets if isinstance(self.training, BlendedDataset) else [self.training]
        return [int(source.dataset.sequence_lengths[source.indices].sum(dtype="int64")) for source in sources]

    @property
    def too_long(self) -> list[int] | None:
        """Training conversations of each source that are too long for a sequence; None for text, which is cut."""
        return [self.training.too_long] if isinstance(self.training, PackedConversations) else None

    @property
    def micro_batches(self) -> int:
        """Micro-batches that one rank computes in an optimizer step."""
        training = self.config.training
        replicas = parallel_state.get_data_parallel_world_size()
        return training.global_batch_size // (training.micro_batch_size * replicas)

    def training_step(self, step: int) -> Iterator[Batch]:
        """Yield this rank's micro-batches of one optimizer step; steps count from 1."""
        size = self.config.training.global_batch_size
        first, end = (step - 1) * size, step * size
        if isinstance(self.training, PackedConversations):
            targets = self.training.targets(first, end)
        else:  # every position of text is a target
            targets = size * self.config.training.seq_len
        replicas = parallel_state.get_data_parallel_world_size(with_context_parallel=True)
        divisor = targets / (self.micro_batches * replicas)
        # Interleaved stages and a recheck read a step again.
        counted, self._counted_step = step != self._counted_step, step
        return self._micro_batches(self.training, first, self.micro_batches, divisor, end, counted)

    @property
    def recheck_micro_batches(self) -> int:
        """Micro-batches that one rank computes in a recheck: one, or a round of the pipeline for interleaved stages."""
        parallel = self.config.parallel
        return parallel.pp if parallel.vpp > 1 else 1

    def recheck_step(self, step: int) -> Iterator[Batch]:
        """Yield the first `recheck_micro_batches` of `training_step`'s micro-batches again."""
        return itertools.islice(self.training_step(step), self.recheck_micro_batches)

    @property
    def validation_micro_batches(self) -> int:
        """Micro-batches that one rank computes in a validation; the last ones may have rows without a target."""
        parallel = self.config.parallel
        replicas = parallel_state.get_data_parallel_world_size()
        count = -(-len(self.validation) // (self.config.training.micro_batch_size * replicas))
        # Interleaved stages compute micro-batches in rounds of the pipeline's length.
        return -(-count // parallel.pp) * parallel.pp if parallel.vpp > 1 else count

    def validation_step(self) -> Iterator[Batch]:
        """Yield this rank's micro-batches of the validation text, the same in every validation."""
        return self._micro_batches(self.validation, 0, self.validation_micro_batches, divisor=1)

    def own_validation_rows(self) -> range:
        """Return the numbers of the validation text's rows that this rank's replica computes."""
        count = self.validation_micro_batches * self.config.training.micro_batch_size
        first = parallel_state.get_data_parallel_rank() * count
        return range(first, first + count)

    def _micro_batches(
        self,
        dataset: Samples,
        first: int,
        count: int,
        divisor: float,
        then: int | None = None,
        counted: bool = False,
    ) -> Iterator[Batch]:
        """Yield `count` micro-batches of the samples from `first`; before the last, begin to read that from `then`.

        `counted`: whether to add their documents to `document_lengths`.
        """
        size = self.config.training.micro_batch_size
        offset = parallel_state.get_data_parallel_rank() * count * size
        coming = self._reading(dataset, first + offset)
        for index in range(count):
            parts, targets, bounds = coming.result()
            tokens, labels, weights, *positions = (part.to(self.device, non_blocking=True) for part in parts)
            documents = Documents(bounds, positions[0].t()) if positions else None
            if counted:
                self.document_lengths.update(end - begin for row in bounds for begin, end in pairwise(row))
            if index + 1 < count:
                coming = self._read(dataset, first + offset + (index + 1) * size)
            elif then is not None and then < self.training_samples:
                self._next_step = (then + offset, self._reading(dataset, then + offset))
            yield Batch(tokens, labels, weights, targets, divisor, documents)

    def _reading(self, dataset: Samples, start: int) -> Future[HostBatch]:
        """Return the micro-batch of samples from `start`, which may be under way: a rank's stages read the same one."""
        if dataset is self.training and self._next_step is not None and self._next_step[0] == start:
            return self._next_step[1]
        return self._read(dataset, start)

    def _read(self, dataset: Samples, start: int) -> Future[HostBatch]:
        return self._reader.submit(self._read_now, dataset, start)

    def _begin_reading(self) -> None:
        if self._pins:
            # Without this the thread would use device 0, where all ranks would allocate memory.
            torch.get_device_module(self.device).set_device(self.device.index)

    def _read_now(self, dataset: Samples, start: int) -> HostBatch:
        samples = [dataset[sample] for sample in range(start, start + self.config.training.micro_batch_size)]
        whole = [torch.stack([sample[key] for sample in samples]) for key in ("tokens", "labels", "loss_mask")]
        bounds: list[list[int]] = []
        # A row of the validation text has one document.
        if self._end is not None and dataset is self.training:
            bounds = bounds_of(whole[0], self._end)
            whole.append(positions_of(bounds))
        own = [_own_part(each) for each in whole]
        # The device copies from pinned memory asynchronously, after its queued work.
        parts = tuple(part.pin_memory() if self._pins else part for part in own)
        return parts, int(own[2].count_nonzero()), bounds


def _pins(device: torch.device) -> bool:
    """Return whether the host's memory can be pinned for this device."""
    # torch 2.6 raises an error for the current accelerator if there is none.
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


def open_validation(
    config: RunConfig, prefixes: Sequence[Path], splits: Sequence[Split], blocks: Mapping[Path, BlockReader]
) -> list[np.ndarray]:
    """Return the documents of a run's validation text, as `choose_documents` returns them.

    Args:
        config: the run's configuration.
        prefixes: prefix of each source's corpus.
        splits: the split of each source.
        blocks: as in `Batches.__init__`.

    Raises:
        TrainingError: no source has a validation document.
    """
    sources = [
        (weight, IndexedDocuments(prefix, blocks.get(prefix)), split.validation)
        for weight, prefix, split in zip(config.data.weights, prefixes, splits, strict=True)
    ]
    documents = choose_documents(sources, config.training.validation_tokens)
    if not documents:
        raise no_document(config, prefixes[0], "validation")
    return documents
