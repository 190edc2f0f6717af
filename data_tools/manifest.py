"""The record that lies beside a tokenized corpus: `PREFIX.manifest.json`."""

from __future__ import annotations

import hashlib
import json
import platform
import unicodedata
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from efficientbench.data_tools.errors import DataError
from efficientbench.data_tools.files import FileChecksums, write_file

FORMAT_VERSION = 1  # of a corpus folder's content; raising it makes every corpus anew


@dataclass(frozen=True)
class Corpus:
    """A tokenized corpus on disk.

    prefix: path of the `.bin/.idx` pair without its suffix.
    vocab_size: of the tokenizer: the largest id + 1.
    eod_id: the token that ends each document.
    tokens, documents: what the pair holds; end-of-document tokens count.
    utf8_bytes: length of the documents' text; None where the pair came without its text and its tokenizer is not
        byte-level, so that it cannot be known.
    token_bytes_path: `.npy`, int32 [vocab_size], UTF-8 length of each token; None where the tokenizer is not
        byte-level.
    tokenizer_folder: the corpus's own copy of the tokenizer, in the form that loads fast.
    tokenizer_fingerprint: `TextTokenizer.fingerprint` of the tokenizer that made the tokens.
    fingerprint: SHA-256 (hex) of the pair's content.
    source: where the text came from, for people.
    manifest: the file from which `load_corpus` gives this corpus to another process.
    """

    prefix: Path
    vocab_size: int
    eod_id: int
    tokens: int
    documents: int
    utf8_bytes: int | None
    token_bytes_path: Path | None
    tokenizer_folder: Path
    tokenizer_fingerprint: str
    fingerprint: str
    source: str
    manifest: Path


_FIELDS = tuple(field.name for field in fields(Corpus) if field.name != "manifest")
_PATHS = ("prefix", "token_bytes_path", "tokenizer_folder")


def manifest_path(prefix: Path) -> Path:
    """Where the manifest of a pair lies."""
    return prefix.with_name(prefix.name + ".manifest.json")


@dataclass(frozen=True)
class InputRecord:
    """An input file, with its SHA-256 (hex) and what it gave."""

    path: str
    size_bytes: int
    sha256: str
    documents: int
    rejected: int


@dataclass(frozen=True)
class TokenizeRecord:
    """How a corpus was made from files; the manifest has it under `tokenized`.

    engine, engine_reason: what encoded, and why it was not tiktoken, where it was not.
    bytes_per_token: UTF-8 bytes of text for each token, end-of-document tokens included.
    rejected: how many documents were left out, by reason.
    special_token_strings: how often names of special tokens occurred in the text, where they are ordinary text.
    files: checksums of the pair, under `bin` and `idx`.
    """

    inputs: list[InputRecord]
    text_key: str
    engine: str
    engine_reason: str | None
    bytes_per_token: float
    rejected: dict[str, int]
    special_token_strings: dict[str, int]
    files: dict[str, FileChecksums]
    versions: dict[str, str]


def versions() -> dict[str, str]:
    """Of what may decide how text becomes tokens."""
    libraries = {name: version(name) for name in ("tokenizers", "tiktoken", "pyarrow", "numpy")}
    return {"python": platform.python_version(), "unicode": unicodedata.unidata_version, **libraries}


def pair_fingerprint(files: dict[str, FileChecksums]) -> str:
    """`Corpus.fingerprint` of a pair with these checksums."""
    return hashlib.sha256(f"{files['idx'].sha256} {files['bin'].sha256}".encode()).hexdigest()


def save_corpus(corpus: Corpus, record: TokenizeRecord | None = None) -> None:
    """Write the manifest, with the record of how it was made where there is one.

    Paths inside its folder are kept relative, so that the folder can be moved.
    """
    folder = corpus.manifest.parent
    content: dict[str, Any] = {"format_version": FORMAT_VERSION}
    for name in _FIELDS:
        value = getattr(corpus, name)
        if isinstance(value, Path):
            value = str(value.relative_to(folder) if value.is_relative_to(folder) else value.absolute())
        content[name] = value
    if record is not None:
        content["tokenized"] = asdict(record)
    write_file(corpus.manifest, (json.dumps(content, indent=2) + "\n").encode())


def load_corpus(manifest: Path) -> Corpus:
    """The corpus that a manifest describes.

    Raises:
        DataError: the manifest is missing or damaged, or a file that it names is missing.
    """
    remedy = "prepare the corpus again"
    try:
        content = json.loads(manifest.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{manifest}: no such manifest; {remedy}") from None
    except ValueError as error:
        raise DataError(f"{manifest} is not JSON ({error}); {remedy}") from None
    if not isinstance(content, dict) or content.get("format_version") != FORMAT_VERSION:
        raise DataError(f"{manifest} is not a corpus manifest of format version {FORMAT_VERSION}; {remedy}")
    if missing := [name for name in _FIELDS if name not in content]:
        raise DataError(f"{manifest} lacks the key {missing[0]!r}; {remedy}")
    values: dict[str, Any] = {name: content[name] for name in _FIELDS}
    for name in _PATHS:
        values[name] = None if values[name] is None else manifest.parent / values[name]
    corpus = Corpus(**values, manifest=manifest)
    for path in (corpus.tokenizer_folder, corpus.token_bytes_path):
        if path is not None and not path.exists():
            raise DataError(f"{path}, which {manifest} names, is missing; {remedy}")
    return corpus


def load_record(manifest: Path) -> TokenizeRecord | None:
    """How the corpus of a manifest was made; None where it was not made from files.

    Raises:
        DataError: the manifest is missing or damaged.
    """
    try:
        content = json.loads(manifest.read_bytes()).get("tokenized")
        if content is None:
            return None
        inputs = [InputRecord(**item) for item in content.pop("inputs")]
        files = {name: FileChecksums(**item) for name, item in content.pop("files").items()}
        return TokenizeRecord(inputs=inputs, files=files, **content)
    except (AttributeError, KeyError, TypeError, ValueError, FileNotFoundError):
        raise DataError(f"{manifest} is damaged: tokenize again") from None


def summary(corpus: Corpus) -> str:
    """A corpus in a few lines, for people."""
    lines = [f"{corpus.prefix}: {corpus.documents:,} documents of {corpus.tokens:,} tokens"]
    record = load_record(corpus.manifest)
    if record is not None:
        lines.append(f"{record.bytes_per_token:.3f} bytes of text per token, encoded by {record.engine}")
        if record.engine_reason:
            lines.append(f"not by tiktoken: {record.engine_reason}")
        rejected = ", ".join(f"{count:,} {reason}" for reason, count in record.rejected.items())
        lines.append(f"documents left out: {rejected or 'none'}")
        special = ", ".join(f"{count:,} x {string}" for string, count in record.special_token_strings.items())
        lines.append(f"names of special tokens in the text, kept as text: {special or 'none'}")
    lines.append(f"manifest: {corpus.manifest}")
    return "\n".join(lines)
