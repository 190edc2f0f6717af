"""Trains a tokenizer on most of a sample of files, and measures its compression on the rest."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import DataError
from efficientbench.basics.files import complete_folder, disk_errors_explained, write_file
from efficientbench.data_tools.tokenizer.tokenizer import (
    MAX_TRAINING_CHARACTERS,
    TextTokenizer,
    load_tokenizer,
    train_tokenizer,
)
from efficientbench.data_tools.tokenizing.documents import PartReader, Reject
from efficientbench.data_tools.tokenizing.inputs import Part, cut_into_parts, find_inputs

HELD_OUT_EVERY = 50
"""One document in this many is held out of training."""

_OPEN_PARTS = 16
"""Parts that are read in turn, so that no file's text outweighs the others'."""

_SHUFFLE_SEED = 1234


@dataclass(frozen=True)
class Compression:
    """A tokenizer's compression of the held-out text."""

    tokenizer: str
    vocab_size: int
    tokens: int
    bytes_per_token: float


@dataclass(frozen=True)
class TrainedTokenizer:
    """The result of training. Bytes are UTF-8."""

    folder: Path
    vocab_size: int
    wanted_vocab_size: int
    documents: int
    training_bytes: int
    rejected: int
    held_out_documents: int
    held_out_bytes: int
    compression: tuple[Compression, ...]
    """The new tokenizer's compression, then that of the tokenizers it is compared with; empty if the text is a single
    document, so that none could be held out."""


def train_on_files(
    inputs: Sequence[str], vocab_size: int, folder: Path, compare: Sequence[str], text_key: str, chat: bool = False
) -> TrainedTokenizer:
    """Train a tokenizer on files, folders and globs, and save it in `folder` for `AutoTokenizer`.

    With `chat`, it gets chat tokens. The folder also holds `token_bytes.npy` (int32 [vocabulary], UTF-8 length of each
    token, 0 for special tokens) and `training.json` (the returned result), and appears only when it is complete. Text
    is read from all files in turn until `MAX_TRAINING_CHARACTERS` are trained on. The same files give the same
    tokenizer.

    Raises:
        DataError: the folder exists already or cannot be written, a tokenizer to compare with cannot be loaded, an
            input cannot be read, or no document is usable.
    """
    if folder.exists():
        raise DataError(f"{folder} exists already: remove it, or choose another folder for the tokenizer")
    others = [(name, load_tokenizer(name)) for name in compare]
    training, held_out, rejected, reason = _sample(cut_into_parts(find_inputs(inputs), text_key), text_key)
    if not training:
        first = reason or "none is there"
        raise DataError(f"{', '.join(inputs)}: no usable document; the first that is not: {first}")
    with disk_errors_explained(folder, "the same command trains it again"), complete_folder(folder) as partial:
        train_tokenizer(training, vocab_size, partial, chat)
        trained = load_tokenizer(partial)
        tokenizers = [(str(folder), trained), *others] if held_out else []
        result = TrainedTokenizer(
            folder=folder,
            vocab_size=trained.vocab_size,
            wanted_vocab_size=vocab_size,
            documents=len(training),
            training_bytes=_utf8_bytes(training),
            rejected=rejected,
            held_out_documents=len(held_out),
            held_out_bytes=_utf8_bytes(held_out),
            compression=tuple(_compression(name, tokenizer, held_out) for name, tokenizer in tokenizers),
        )
        trained.save_token_bytes(partial / "token_bytes.npy")
        facts = {**asdict(result), "folder": str(folder)}
        write_file(partial / "training.json", (json.dumps(facts, indent=2) + "\n").encode())
    return result


def describe_training(result: TrainedTokenizer) -> Iterator[str]:
    """Yield the lines of a report on a training."""
    yield (
        f"{result.folder}: {result.vocab_size:,} tokens, trained on {number_of(result.documents, 'document')} "
        f"({result.training_bytes / 1e6:,.1f} MB)"
    )
    if result.vocab_size < result.wanted_vocab_size:
        yield f"fewer than the {result.wanted_vocab_size:,} asked for: the text has no more pairs to merge"
    if result.rejected:
        yield f"not usable: {number_of(result.rejected, 'document')}"
    if not result.compression:
        yield "compression: n/a: a single document, so that none could be held out"
        return
    yield (
        f"compression of {number_of(result.held_out_documents, 'document')} ({result.held_out_bytes:,} bytes), held "
        "out of its training:"
    )
    width = max(len(each.tokenizer) for each in result.compression)
    yield f"{'tokenizer':<{width}}  vocabulary      tokens  bytes/token"
    for each in result.compression:
        yield f"{each.tokenizer:<{width}}  {each.vocab_size:>10,}  {each.tokens:>10,}  {each.bytes_per_token:>11.3f}"


def _sample(parts: Sequence[Part], text_key: str) -> tuple[list[str], list[str], int, str | None]:
    """Return training and held-out documents, the number of unusable documents, and why the first of them is."""
    training: list[str] = []
    held_out: list[str] = []
    rejected = characters = 0
    reason = None
    for document in documents_in_turn(parts, text_key):
        if isinstance(document, Reject):
            rejected, reason = rejected + 1, reason or document.detail
        # Not the first document, which may be the only one.
        elif (len(training) + len(held_out)) % HELD_OUT_EVERY == 1:
            held_out.append(document)
        else:
            training.append(document)
            characters += len(document)
            if characters >= MAX_TRAINING_CHARACTERS:
                break
    return training, held_out, rejected, reason


def documents_in_turn(parts: Sequence[Part], text_key: str) -> Iterator[str | Reject]:
    """Yield the documents of all parts, from a few parts in turn, so that the first documents represent all."""
    shuffled = list(parts)
    random.Random(_SHUFFLE_SEED).shuffle(shuffled)
    waiting = iter(shuffled)
    active: list[Iterator[str | Reject]] = []
    while True:
        while len(active) < _OPEN_PARTS and (part := next(waiting, None)) is not None:
            active.append(iter(PartReader(part, text_key)))
        if not active:
            return
        for reader in list(active):
            document = next(reader, None)
            if document is None:
                active.remove(reader)
            else:
                yield document


def _compression(name: str, tokenizer: TextTokenizer, documents: list[str]) -> Compression:
    tokens = sum(map(len, tokenizer.encode_batch(documents)))
    return Compression(name, tokenizer.vocab_size, tokens, _utf8_bytes(documents) / tokens)


def _utf8_bytes(documents: Iterable[str]) -> int:
    return sum(len(document.encode()) for document in documents)
