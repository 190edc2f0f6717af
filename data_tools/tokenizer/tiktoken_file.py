"""Read a pickled `Encoding` of tiktoken, such as nanochat's `tokenizer.pkl`, as plain data, and make it a tokenizer.

A pickle can call whatever it names. This one may name a single class, in whose place stands an empty one, and use only
the operations that put texts, bytes and whole numbers into dictionaries.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiktoken
from tokenizers import models

from efficientbench.basics.errors import DataError, first_line
from efficientbench.basics.foreign import read_whole
from efficientbench.data_tools.tokenizer.engine import HARD_STRINGS, byte_characters
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer, byte_level, text_tokenizer

ENCODING = "tiktoken.core", "Encoding"
"""The only name in the file: module and class."""
OPERATIONS = {
    *("PROTO", "FRAME", "MEMOIZE", "MARK", "STOP", "STACK_GLOBAL", "EMPTY_TUPLE", "NEWOBJ", "BUILD"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS", "BINGET", "LONG_BINGET", "SHORT_BINUNICODE", "BINUNICODE"),
    *("SHORT_BINBYTES", "BINBYTES", "BININT", "BININT1", "BININT2"),
}
"""Operations of a pickle that Python 3.8 to 3.14 write for an encoding; none calls a function."""


@dataclass(frozen=True)
class Encoding:
    """The content of the file."""

    pattern: str
    """The regular expression that splits text."""
    ranks: dict[bytes, int]
    """The id of each token by its bytes; two neighbours that make a token are merged in the order of ids."""
    special: dict[str, int]
    """The ids of the special tokens by name; they follow the others."""


def read_encoding(path: Path) -> Encoding:
    """Read the file. Nothing that it names is imported or called.

    Raises:
        OSError: the file cannot be read.
        DataError: it holds anything but an encoding, or is damaged.
    """
    content = read_whole(path)
    stand_in = type("Encoding", (), {})

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) != ENCODING:
                raise DataError(f"it names {module}.{name}, and {'.'.join(ENCODING)} alone would be right")
            return stand_in

    try:
        for operation, _, _ in pickletools.genops(content):
            if operation.name not in OPERATIONS:
                raise DataError(f"it uses {operation.name}, which no pickled encoding of tiktoken does")
        found = vars(Reader(io.BytesIO(content)).load())
        encoding = Encoding(found["pat_str"], found["mergeable_ranks"], found["special_tokens"])
        ids = [*encoding.ranks.values(), *encoding.special.values()]
        texts = [encoding.pattern, *encoding.special]
        if {*map(type, texts)} != {str} or {*map(type, encoding.ranks)} != {bytes} or sorted(ids) != [*range(len(ids))]:
            raise DataError("its ids are not 0, 1, … of texts and bytes")
        if not {bytes([each]) for each in range(256)} <= encoding.ranks.keys():
            raise DataError("it lacks single bytes")
    except DataError as error:
        raise DataError(f"{path}: refused, {error}") from None
    except Exception as error:  # a damaged pickle may raise anything
        raise DataError(f"{path}: damaged, or no encoding ({type(error).__name__}: {first_line(error)})") from None
    return encoding


def tokenizer_of(encoding: Encoding, end_of_document: str, path: Path) -> TextTokenizer:
    """Return the tokenizer that gives tiktoken's own ids.

    Args:
        encoding: the content of the file.
        end_of_document: the special token between documents.
        path: the file, for messages.

    Raises:
        DataError: `tokenizers` gives other ids on hard texts, or the special token is missing.
    """
    characters = byte_characters()
    names = {token: "".join(characters[byte] for byte in token) for token in encoding.ranks}
    merges = [
        (names[parts[0]], names[parts[1]])
        for token in sorted(encoding.ranks, key=encoding.ranks.__getitem__)
        if len(parts := _merged(token, encoding.ranks)) == 2
    ]
    vocabulary = {names[token]: rank for token, rank in encoding.ranks.items()}
    try:
        # As tiktoken: a piece of text that is a token as a whole is never merged from parts.
        backend = byte_level(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True), encoding.pattern)
        backend.add_special_tokens(sorted(encoding.special, key=encoding.special.__getitem__))
        tokenizer = text_tokenizer(backend, end_of_document, path)
        if tokenizer.special_tokens() != encoding.special:
            raise DataError("its special tokens do not follow the others")
        theirs = tiktoken.Encoding(
            path.name, pat_str=encoding.pattern, mergeable_ranks=encoding.ranks, special_tokens={}
        )
        for text, ids in zip(HARD_STRINGS, tokenizer.encode_batch([*HARD_STRINGS]), strict=True):
            if theirs.encode_ordinary(text) != ids:
                raise DataError(f"tiktoken and `tokenizers` give other ids for {text[:60]!r}")
    except Exception as error:  # neither library raises anything narrower
        raise DataError(f"{path}: {first_line(error)}") from None
    return tokenizer


def _merged(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """Merge a token's bytes by the merges before its own: two parts, which its own merge joins.

    More parts are left of a token that tiktoken gives only to a piece of text that equals it.
    """
    parts = [bytes([each]) for each in token]
    while len(parts) > 2:
        rank, at = min((ranks.get(parts[at] + parts[at + 1], len(ranks)), at) for at in range(len(parts) - 1))
        if rank >= ranks[token]:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts
