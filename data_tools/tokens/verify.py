"""Verifies that a pair on disk, its tokenizer and its token lengths are still what the manifest records."""

from __future__ import annotations

from pathlib import Path

from efficientbench.data_tools.chat.record import check_mask
from efficientbench.data_tools.tokens.indexed import IndexedHeader, check_indexed, check_layout
from efficientbench.data_tools.tokens.indexed_documents import token_counts
from efficientbench.data_tools.tokens.intact import check_sizes, verify_file
from efficientbench.data_tools.tokens.manifest import Corpus, check_counts, load_checksums, load_corpus, manifest_path


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
