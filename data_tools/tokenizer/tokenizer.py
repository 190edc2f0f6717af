"""Byte-level BPE tokenizers: training, and loading whatever `transformers.AutoTokenizer` loads."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from efficientbench.basics.errors import DataError, first_line
from efficientbench.basics.files import complete_folder, write_file
from efficientbench.data_tools.chat.styles import CHAT_TOKENS, find_style
from efficientbench.data_tools.tokenizer.tokenizer_files import eos_token, folder_checksum, tokenizer_folder

END_OF_DOCUMENT = "<|endoftext|>"
"""The token that ends each document, where the tokenizer has it."""

SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How text is split before bytes are merged, as GPT-4's tokenizer does it: words with one leading character, up to
three digits, punctuation with its line ends, and white space."""

MIN_VOCAB_SIZE = 257
"""The smallest vocabulary: every byte, and the end of a document."""

MAX_TRAINING_CHARACTERS = 64_000_000
"""The most characters that a tokenizer is trained on. Merges settle long before: more text changes little."""

TRAINING_RULES = f"byte-level BPE {SPLIT_PATTERN} {END_OF_DOCUMENT} {MAX_TRAINING_CHARACTERS}"
"""Everything that decides the result of training, besides the text and the vocabulary's size."""


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer as a corpus needs it."""

    vocab_size: int
    """The largest id + 1, added tokens included."""
    eod_id: int
    """The id of the token that ends a document."""
    fingerprint: str
    """SHA-256 (hex) of everything that decides the ids; a copy in another folder has the same."""
    backend: Tokenizer
    description: str
    """The content of its `tokenizer.json`."""
    spec: dict[str, Any]
    """`description`, parsed."""

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text. No token is added, and names of special tokens are ordinary text."""
        return [encoding.ids for encoding in self.backend.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens; skip special tokens, and replace bytes that are no character by U+FFFD."""
        return self.backend.decode(ids)

    def token_bytes(self) -> np.ndarray | None:
        """Return the UTF-8 length of every token, int32 [vocab_size]; 0 for special tokens and ids without a token.

        Their sum over a document is the length of the normalized text. Return None if the tokenizer is not byte-level.
        """
        if not _is_byte_level(self.spec):
            return None
        alphabet = frozenset(pre_tokenizers.ByteLevel.alphabet())  # one character stands for each byte
        lengths = np.zeros(self.vocab_size, np.int32)
        for token, index in _vocabulary(self.spec).items():
            lengths[index] = len(token) if alphabet.issuperset(token) else len(token.encode())
        for added in self.spec["added_tokens"]:
            lengths[added["id"]] = 0 if added["special"] else len(added["content"].encode())
        return lengths

    def special_tokens(self) -> dict[str, int]:
        """Return the ids of the special tokens by name; in a document, these names are ordinary text."""
        return {added["content"]: added["id"] for added in self.spec["added_tokens"] if added["special"]}

    def save_token_bytes(self, path: Path) -> Path | None:
        """Write `token_bytes()` as `.npy` and return the path; write nothing and return None if there are none."""
        lengths = self.token_bytes()
        if lengths is None:
            return None
        # Through a buffer: numpy's own error does not say that the disk is full.
        buffer = io.BytesIO()
        np.save(buffer, lengths)
        write_file(path, buffer.getvalue())
        return path

    def save(self, folder: Path) -> None:
        """Write a folder that `load_tokenizer` and `AutoTokenizer` load; the folder appears only when it is complete.

        A tokenizer with chat tokens gets the `chat_template` of its style.
        """
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": self.backend.id_to_token(self.eod_id),
            "clean_up_tokenization_spaces": False,
            "model_max_length": 10**9,
        }
        if style := find_style(self.special_tokens()):
            config["chat_template"] = style.template
        with complete_folder(folder) as partial:
            write_file(partial / "tokenizer.json", self.description.encode())
            write_file(partial / "tokenizer_config.json", json.dumps(config, indent=2).encode())


def train_tokenizer(documents: Iterable[str], vocab_size: int, folder: Path, chat: bool = False) -> None:
    """Train byte-level BPE of at most `vocab_size` tokens, special tokens included, and save it in `folder`.

    Its special tokens are `<|endoftext|>` and, if `chat`, `CHAT_TOKENS`. At most the first `MAX_TRAINING_CHARACTERS`
    characters are read. A text with too few pairs to merge gives a smaller vocabulary. The same documents give the
    same tokenizer.

    Raises:
        DataError: `vocab_size` is too small for every byte and the special tokens.
    """
    special = [END_OF_DOCUMENT, *(CHAT_TOKENS if chat else ())]
    smallest = MIN_VOCAB_SIZE - 1 + len(special)
    if vocab_size < smallest:
        more = f", and {len(CHAT_TOKENS)} chat tokens" if chat else ""
        raise DataError(
            f"a byte-level tokenizer needs at least {smallest} tokens (256 bytes and the end of a document{more}), "
            f"not {vocab_size}"
        )
    tokenizer = byte_level(models.BPE(), SPLIT_PATTERN)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_first(documents, MAX_TRAINING_CHARACTERS), trainer)
    text_tokenizer(tokenizer, END_OF_DOCUMENT, folder).save(folder)


def byte_level(model: models.BPE, pattern: str) -> Tokenizer:
    """Return a tokenizer that splits text by a regular expression, and the bytes of each piece by a model."""
    tokenizer = Tokenizer(model)
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, cut])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _first(documents: Iterable[str], characters: int) -> Iterator[str]:
    for document in documents:
        yield document[:characters]
        characters -= len(document)
        if characters <= 0:
            return


def load_tokenizer(path_or_name: str | Path) -> TextTokenizer:
    """Load a tokenizer from a folder, or by its name on the Hugging Face hub or ModelScope.

    `tokenizers` itself reads a `tokenizer.json`, which saves the seconds that importing transformers takes.

    Raises:
        DataError: there is no such folder or name, the hub cannot be reached, the files cannot be read, or the
            tokenizer has no token that could end a document.
    """
    folder = tokenizer_folder(path_or_name)
    tokenizer_json = folder / "tokenizer.json"
    if tokenizer_json.is_file():
        try:
            backend = Tokenizer.from_file(str(tokenizer_json))
        except Exception as error:  # tokenizers raises nothing narrower
            raise DataError(f"{tokenizer_json} cannot be read as a tokenizer: {first_line(error)}") from None
    else:
        backend = _load_with_transformers(folder)
    return text_tokenizer(backend, eos_token(folder), folder)


def _load_with_transformers(folder: Path) -> Tokenizer:
    # Imported here: it takes seconds, and most folders do not need it.
    from transformers import AutoTokenizer

    folder_checksum(folder)
    try:
        loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # a foreign folder can fail in any way
        raise DataError(f"transformers cannot load a tokenizer from {folder}: {first_line(error)}") from None
    backend = getattr(loaded, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise DataError(
            f"{folder} has only a slow Python tokenizer ({type(loaded).__name__}): save it as a fast one "
            "(tokenizer.json) first"
        )
    return backend


def text_tokenizer(backend: Tokenizer, eos_token: str | None, folder: Path) -> TextTokenizer:
    """Return a tokenizer as a corpus needs it; `folder` is where it came from.

    Raises DataError: it has neither `<|endoftext|>` nor `eos_token`.
    """
    # A tokenizer.json may carry these for a model's sake; they would cut or pad documents silently.
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True  # despite its name: encode their strings as ordinary text
    eod_id = backend.token_to_id(END_OF_DOCUMENT)
    if eod_id is None and eos_token is not None:
        eod_id = backend.token_to_id(eos_token)
    if eod_id is None:
        raise DataError(
            f"the tokenizer in {folder} has no token that could end a document: neither {END_OF_DOCUMENT} nor an "
            "eos_token in its tokenizer_config.json"
        )
    spec = json.loads(backend.to_str())
    if unmarked := [added for added in spec["added_tokens"] if added["id"] == eod_id and not added["special"]]:
        # Otherwise, the token's name in a document would end that document.
        for added in unmarked:
            added["special"] = True
        backend = Tokenizer.from_str(json.dumps(spec))
        backend.encode_special_tokens = True
    description = backend.to_str()
    spec = json.loads(description)
    ids = [*_vocabulary(spec).values(), *(added["id"] for added in spec["added_tokens"])]
    return TextTokenizer(
        vocab_size=max(ids) + 1,
        eod_id=eod_id,
        fingerprint=hashlib.sha256(f"{eod_id} {description}".encode()).hexdigest(),
        backend=backend,
        description=description,
        spec=spec,
    )


def _vocabulary(spec: dict[str, Any]) -> dict[str, int]:
    """Return the model's tokens and their ids, without added tokens."""
    vocabulary = spec["model"]["vocab"]
    if isinstance(vocabulary, dict):
        return vocabulary
    return {token: index for index, (token, _) in enumerate(vocabulary)}  # unigram models list tokens with scores


def _is_byte_level(spec: dict[str, Any]) -> bool:
    """Return whether every character of a token stands for one byte."""
    if spec["model"].get("continuing_subword_prefix") or spec["model"].get("end_of_word_suffix"):
        return False
    parts = [spec["normalizer"], spec["pre_tokenizer"]]
    while parts:
        part = parts.pop() or {}
        if part.get("type") == "ByteLevel":
            return True
        parts += part.get("pretokenizers", []) + part.get("normalizers", [])
    return False
