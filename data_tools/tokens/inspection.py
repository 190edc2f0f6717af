"""Describes a `.bin/.idx` pair for people (figures, document lengths, documents as text), and verifies it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from efficientbench.basics.foreign import plain_text
from efficientbench.data_tools.chat.record import check_mask
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from efficientbench.data_tools.tokens.indexed import (
    IndexedHeader,
    bin_path,
    check_indexed,
    check_layout,
    idx_path,
    mask_prefix,
)
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments, token_counts
from efficientbench.data_tools.tokens.intact import check_sizes, verify_file
from efficientbench.data_tools.tokens.manifest import Corpus, check_counts, load_checksums, load_corpus, manifest_path

_SHOWN_CHARACTERS = 400
"""The most characters of a document that are printed."""

_BAR_WIDTH = 40
"""Characters of the longest bar of the histogram."""

OPEN, CLOSE = "⟦", "⟧"
"""Brackets around supervised text, where there are no colours."""

_GREEN, _GREY, _PLAIN = "\x1b[32m", "\x1b[90m", "\x1b[0m"


@dataclass(frozen=True)
class PairStatistics:
    """The statistics of a pair."""

    lengths: np.ndarray
    """Tokens of each document, end-of-document token included, int64 [documents]."""
    counts: np.ndarray
    """How often each token occurs, int64 [vocabulary]."""
    bytes_per_token: float | None
    """UTF-8 bytes of text per token, end-of-document tokens included; None if the text's length is not known."""

    @property
    def unigram_entropy_nats(self) -> float:
        """Entropy of the token frequencies, -sum p ln p, per token: the loss of a model without context."""
        frequencies = self.counts[self.counts > 0] / self.counts.sum()
        return float(-(frequencies * np.log(frequencies)).sum())

    def histogram(self) -> list[tuple[int, int, int]]:
        """Return (shortest, longest, documents) for lengths in doubling ranges: 0, 1, 2 to 3, 4 to 7 and so on."""
        ranges = np.frexp(self.lengths.astype(np.float64))[1]
        documents = np.bincount(ranges)
        first = int(ranges.min())
        return [
            (1 << power >> 1, max(0, (1 << power) - 1), int(documents[power])) for power in range(first, len(documents))
        ]


def tokenizer_of(prefix: Path, given: str | None) -> TextTokenizer | None:
    """Load the tokenizer `given`, else the one that the manifest beside the pair names; return None without either.

    Raises:
        DataError: the tokenizer cannot be loaded, or the manifest is damaged.
    """
    if given is not None:
        return load_tokenizer(given)
    if not manifest_path(prefix).is_file():
        return None
    return load_tokenizer(load_corpus(manifest_path(prefix)).tokenizer_folder)


def pair_statistics(prefix: Path, tokenizer: TextTokenizer | None) -> PairStatistics:
    """Check a pair, and return its statistics.

    Raises:
        DataError: the pair is damaged, or has a token outside the tokenizer's vocabulary; the message names the byte.
    """
    header = check_indexed(prefix)
    counts = token_counts(prefix, tokenizer.vocab_size if tokenizer is not None else None)
    lengths = tokenizer.token_bytes() if tokenizer is not None else None
    utf8_bytes = load_corpus(manifest_path(prefix)).utf8_bytes if manifest_path(prefix).is_file() else None
    if utf8_bytes is None and lengths is not None:
        utf8_bytes = int(counts @ lengths.astype(np.int64))
    bytes_per_token = utf8_bytes / header.tokens if utf8_bytes is not None else None
    return PairStatistics(IndexedDocuments(prefix).lengths(), counts, bytes_per_token)


def describe_pair(
    prefix: Path, tokenizer: TextTokenizer | None, documents: int, coloured: bool = False
) -> Iterator[str]:
    """Yield lines for people: figures, the histogram of lengths, and the first `documents` documents.

    The supervised text of conversations is green if `coloured`, else in brackets.

    Raises:
        DataError: see `pair_statistics`; or the mask is damaged.
    """
    found = pair_statistics(prefix, tokenizer)
    yield from _figures(prefix, found, "not known" if tokenizer is None else "not byte-level")
    yield ""
    yield from _bars(found.histogram())
    opened, mask = IndexedDocuments(prefix), _mask(prefix)
    for number in range(min(documents, len(opened))):
        tokens = opened[number]
        yield ""
        if mask is None or tokenizer is None:
            yield f"document {number:,} ({len(tokens):,} tokens)"
            yield _text(tokens, tokenizer)
        else:
            yield f"conversation {number:,} ({len(tokens):,} tokens, {int(mask[number].sum()):,} supervised)"
            yield show_conversation(tokens, mask[number], tokenizer, coloured)


def _mask(prefix: Path) -> IndexedDocuments | None:
    """Open the mask of a conversation pair; return None for other pairs. Raises DataError if the mask is damaged."""
    if not idx_path(mask_prefix(prefix)).is_file():
        return None
    if manifest_path(prefix).is_file():
        check_mask(load_corpus(manifest_path(prefix)))
    return IndexedDocuments(mask_prefix(prefix))


def _figures(prefix: Path, found: PairStatistics, tokenizer: str) -> Iterator[str]:
    tokens, used = int(found.counts.sum()), int((found.counts > 0).sum())
    size_bytes = bin_path(prefix).stat().st_size + idx_path(prefix).stat().st_size
    low, median, high = (int(each) for each in np.quantile(found.lengths, (0.05, 0.5, 0.95), method="nearest"))
    nats = found.unigram_entropy_nats
    per_token = (
        f"{found.bytes_per_token:.3f}" if found.bytes_per_token is not None else f"n/a: the tokenizer is {tokenizer}"
    )
    yield f"documents           {len(found.lengths):,}"
    yield f"tokens              {tokens:,} ({IndexedDocuments(prefix).dtype}, {size_bytes / 1e6:,.1f} MB on disk)"
    yield (
        f"tokens a document   mean {tokens / len(found.lengths):,.1f}, median {median:,}, 5 % {low:,}, 95 % {high:,}, "
        f"longest {int(found.lengths.max()):,}"
    )
    yield f"different tokens    {used:,} of {len(found.counts):,}"
    yield f"unigram entropy     {nats:.4f} nats a token ({nats / np.log(2):.4f} bits)"
    yield f"bytes a token       {per_token}"


def _bars(histogram: list[tuple[int, int, int]]) -> Iterator[str]:
    most = max(documents for _, _, documents in histogram)
    labels = [f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high, _ in histogram]
    width = max(map(len, labels))
    yield f"{'tokens':>{width}}   documents"
    for label, (_, _, documents) in zip(labels, histogram, strict=True):
        bar = "█" * round(_BAR_WIDTH * documents / most)
        yield f"{label:>{width}}   {bar}{' ' if bar else ''}{documents:,}"


def _text(tokens: np.ndarray, tokenizer: TextTokenizer | None) -> str:
    if tokenizer is None:
        shown = " ".join(map(str, tokens[: _SHOWN_CHARACTERS // 8]))
        return f"{shown}{' …' if len(tokens) > _SHOWN_CHARACTERS // 8 else ''} (ids: the tokenizer is not known)"
    # A character takes at most four tokens of a byte each: decode only the beginning of a book.
    head = tokens[: 4 * _SHOWN_CHARACTERS].tolist()
    # Foreign text may hold control characters that a terminal obeys.
    text = plain_text(tokenizer.backend.decode(head, skip_special_tokens=False))
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"


def show_conversation(ids: np.ndarray, mask: np.ndarray, tokenizer: TextTokenizer, coloured: bool) -> str:
    """Return a conversation's text with its special tokens: supervised text green, the rest grey.

    Args:
        ids: The tokens' ids, [T].
        mask: The mask, [T]: 1 where the token is supervised.
        tokenizer: The tokenizer that made the ids.
        coloured: Whether the output has colours; without colours, supervised text is in brackets.
    """
    shown = []
    for supervised, group in groupby(zip(ids.tolist(), mask.tolist(), strict=True), lambda each: bool(each[1])):
        text = tokenizer.backend.decode([token for token, _ in group], skip_special_tokens=False)
        if coloured:
            shown.append(f"{_GREEN if supervised else _GREY}{_safe(text)}{_PLAIN}")
        else:
            shown.append(f"{OPEN}{_safe(text)}{CLOSE}" if supervised else _safe(text))
    return "".join(shown)


def _safe(text: str) -> str:
    """Return text with escapes for characters that would change how a terminal shows it."""
    return "".join(each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text)


def verify_pair(prefix: Path, vocab_size: int | None = None) -> tuple[IndexedHeader, Corpus | None]:
    """Check header, sizes, lengths, pointers, document indices, bounds of tokens, and the manifest's checksums.

    In a conversation pair, check the mask too. Return the header and the manifest's corpus; None for the corpus if the
    pair has no manifest, and so no checksums to compare with.

    Args:
        prefix: The pair's path without suffix.
        vocab_size: Bounds the tokens of a pair without manifest; None allows every token that is not negative.

    Raises:
        DataError: the pair is damaged; the message names the file, and the first wrong byte (for content that differs
            from the recorded checksums, the block of bytes).
    """
    header = check_indexed(prefix)
    check_layout(prefix)
    manifest = manifest_path(prefix)
    if not manifest.exists():
        token_counts(prefix, vocab_size)
        return header, None
    corpus = load_corpus(manifest)
    check_counts(corpus, header)
    token_counts(prefix, corpus.vocab_size)
    recorded = load_checksums(manifest)
    check_sizes(corpus, recorded)
    for path, checksums in recorded.items():
        verify_file(path, checksums, manifest)
    check_mask(corpus)
    return header, corpus
