"""The task `loss`: loss and bits per byte of each document of a text, or of the run's validation text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from efficientbench.basics.errors import ConfigError, GenerationError
from efficientbench.basics.grouped import grouped
from efficientbench.data_tools.tokenizing.documents import TEXT_KEY, PartReader, Reject
from efficientbench.data_tools.tokenizing.inputs import cut_into_parts, find_inputs
from efficientbench.data_tools.tokens.splitting import SPLITS, split_documents
from efficientbench.evaluation.scoring import padded_parts, rounded
from efficientbench.evaluation.task import Item, ItemResult, Options, Summary, prompt_hash
from efficientbench.metrics.formulas.definitions import bits_per_byte
from efficientbench.running.corpora import block_readers, load_corpora
from efficientbench.running.trained import TrainedRun
from efficientbench.training.data.batches import open_validation
from efficientbench.training.data.conversations import Conversations, choose_conversations
from efficientbench.training.data.validation import ValidationText

if TYPE_CHECKING:
    from efficientbench.generation.open_run import Opened

NO_BYTES = "the run's tokenizer is not made of bytes"


@dataclass(frozen=True)
class Text:
    """The documents to score."""

    documents: Sequence[np.ndarray]
    """Each document's tokens, two or more; the first is not a target."""
    hashes: Sequence[str]
    """Each document's SHA-256 (hex): of its text if that is known, else of its tokens as little-endian int64."""
    masks: Sequence[np.ndarray] | None
    """Each document's mask, 1 at targets; None: all tokens are targets."""
    source: str
    rejected: int = 0
    """The number of documents that cannot be read, or have no token to predict."""


class Loss:
    """Cuts documents as validation does, and computes sequences padded only to about their own length."""

    name = "loss"

    def __init__(self, run: Opened, options: Options) -> None:
        """Read the text.

        Raises:
            ConfigError: the text is missing, or has no document.
            DataError: the text cannot be read.
        """
        self.run, self.budget = run, options.batch_tokens
        if options.text is None:
            self.source = own_validation(options.folder)
        else:
            self.source = read_text(options.text, run, options.limit)
        count = options.limit or len(self.source.documents)
        self.numbers = range(min(count, len(self.source.documents)))
        self.text = ValidationText(
            self.source.documents[:count],
            run.config.training.seq_len,
            None if self.source.masks is None else self.source.masks[:count],
        )
        lengths = run.tokenizer.token_bytes()
        self.device = next(run.model.parameters()).device
        self.token_bytes = None if lengths is None else torch.from_numpy(lengths.astype(np.int64))
        self.settings: Mapping[str, Any] = {"text_sha256": self.text.fingerprint, "seq_len": self.text.seq_len}
        if options.text is not None:
            # The fingerprint is that of the targets alone, and the first token of a document is none.
            self.settings |= {"documents": prompt_hash("".join(self.source.hashes[:count]))}

    def items(self) -> Sequence[Item]:
        """Return an item for each document."""
        return [Item(f"document/{number}", len(self.source.documents[number])) for number in self.numbers]

    def score(self, items: Sequence[Item]) -> Iterator[list[ItemResult]]:
        """Yield the documents' results, batch after batch."""
        rows = grouped((row.document, index) for index, row in enumerate(self.text.rows))
        documents = [int(item.name.partition("/")[2]) for item in items]
        documents.sort(key=lambda each: len(self.source.documents[each]))
        for part in _parts(documents, [len(self.source.documents[each]) for each in documents], self.budget):
            sums = {number: np.zeros(3) for number in part}
            of_part = sorted((row for number in part for row in rows[number]), key=self._targets)
            for batch in padded_parts(of_part, self._targets, self.budget):
                for index, figures in zip(batch, self._compute(batch), strict=True):
                    sums[self.text.rows[index].document] += figures
            yield [self._result(number, *figures) for number, figures in sums.items()]

    def _targets(self, row: int) -> int:
        return self.text.rows[row].targets

    def _compute(self, rows: Sequence[int]) -> np.ndarray:
        """Return the total loss, the tokens and the UTF-8 bytes of n sequences, [n, 3]."""
        samples = [self.text[row] for row in rows]
        longest = rounded(max(map(self._targets, rows)), self.text.seq_len)
        tokens, labels, mask = (
            torch.stack([sample[key][:longest] for sample in samples]) for key in ("tokens", "labels", "loss_mask")
        )
        with torch.no_grad():
            losses = self.run.model(tokens.to(self.device), labels.to(self.device), mask.to(self.device))
        sizes = torch.zeros(len(rows)) if self.token_bytes is None else (self.token_bytes[labels] * mask).sum(dim=1)
        return torch.stack([losses.cpu().double(), mask.sum(dim=1).double(), sizes.double()], dim=1).numpy()

    def _result(self, number: int, loss: float, tokens: float, utf8_bytes: float) -> ItemResult:
        if not np.isfinite(loss):
            raise GenerationError(f"document {number}: the loss is {loss}: the weights are broken")
        known_bytes = None if self.token_bytes is None else int(utf8_bytes)
        details = {"loss_sum": float(loss), "tokens": int(tokens), "utf8_bytes": known_bytes}
        mean = (float(loss / tokens),) if tokens else (None,)
        return ItemResult(f"document/{number}", self.source.hashes[number], None, None, mean, details)

    def summary(self, results: Mapping[str, ItemResult]) -> Summary:
        """Return the mean loss per token and the bits per byte over all documents."""
        tokens = sum(result.details["tokens"] for result in results.values())
        loss = sum(result.details["loss_sum"] for result in results.values()) / tokens
        utf8_bytes = None
        if self.token_bytes is not None:
            utf8_bytes = sum(result.details["utf8_bytes"] for result in results.values())
        parts = {
            "source": self.source.source,
            "tokens": tokens,
            "utf8_bytes": utf8_bytes,
            "documents_left_out": self.source.rejected,
        }
        if not utf8_bytes:
            why = NO_BYTES if self.token_bytes is None else "no token of the text stands for a byte"
            return Summary({"loss": loss, "bits_per_byte": None}, {"bits_per_byte": why}, parts)
        return Summary({"loss": loss, "bits_per_byte": bits_per_byte(loss, tokens, utf8_bytes)}, parts=parts)


def own_validation(folder: Path) -> Text:
    """Return the run's validation text.

    Raises:
        ConfigError: the run was imported, or its corpus no longer exists.
        DataError: the corpus is damaged.
    """
    job = TrainedRun.read(folder).job
    missing = [path for path in job.corpora if not path.is_file()]
    if missing or not job.corpora:
        why = f"{missing[0]} no longer exists" if missing else "the model was imported"
        raise ConfigError(f"loss: the run's own validation text is missing: {why}; give a text with --text PATH")
    config, corpora = job.config, load_corpora(job)
    prefixes, blocks = [corpus.prefix for corpus in corpora], block_readers(corpora)
    cache = Path(config.data.cache).absolute() / SPLITS
    splits = split_documents(prefixes, config.data.split, corpora[0].vocab_size, cache)
    masks: Sequence[np.ndarray] | None = None
    if config.training.objective != "pretrain":
        found = Conversations(prefixes[0], config.training.seq_len, blocks.get(prefixes[0]))
        documents, masks = choose_conversations(found, splits[0].validation, config.training.validation_tokens)
    else:
        documents = open_validation(config, prefixes, splits, blocks)
    hashes = [prompt_hash(document.astype("<i8").tobytes()) for document in documents]
    return Text(documents, hashes, masks, "the run's validation text")


def read_text(path: Path, run: Opened, limit: int | None) -> Text:
    """Return up to `limit` documents of a text, each with its end-of-document token, as in a corpus.

    Raises:
        ConfigError: the text has no document with a token.
        DataError: the text cannot be read.
    """
    documents, hashes, rejected, first = [], [], 0, None
    for part in cut_into_parts(find_inputs([path]), TEXT_KEY):
        for document in PartReader(part):
            run.report("reading the text")
            if isinstance(document, Reject):
                rejected, first = rejected + 1, first or document.detail
                continue
            ids = run.tokenizer.encode_batch([document])[0]
            if not ids:
                rejected += 1
                continue
            documents.append(np.array([*ids, run.tokenizer.eod_id], np.int64))
            hashes.append(prompt_hash(document))
            if len(documents) == limit:
                return Text(documents, hashes, None, str(path), rejected)
    if not documents:
        why = f"; the first: {first}" if first else ""
        raise ConfigError(f"--text: {path} has no document that can be read ({rejected:,} cannot{why})")
    return Text(documents, hashes, None, str(path), rejected)


def joined(documents: Sequence[np.ndarray], end: int) -> np.ndarray:
    """Concatenate documents, each with its end-of-document token `end`, as in a corpus.

    Validation cuts long documents, which then lack that token.
    """
    pieces: list[np.ndarray] = []
    for document in documents:
        pieces += [document] if document[-1] == end else [document, np.array([end])]
    return np.concatenate(pieces)


def _parts(numbers: Sequence[int], sizes: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield the numbers in parts whose sizes sum to about `budget`."""
    ends = itertools.accumulate(sizes)
    for _, group in itertools.groupby(zip(numbers, ends, strict=True), lambda each: (each[1] - 1) // budget):
        yield [number for number, _ in group]
