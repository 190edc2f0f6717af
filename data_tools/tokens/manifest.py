"""The manifest beside a tokenized corpus: `PREFIX.manifest.json`."""

from __future__ import annotations

import hashlib
import json
import platform
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import DataError
from efficientbench.basics.files import FileChecksums, file_checksums, write_file
from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.data_tools.tokens.indexed import REMEDY, IndexedHeader, bin_path, idx_path

FORMAT_VERSION = 2
"""The version of a corpus folder's format; after a new version, every corpus is made again."""


@dataclass(frozen=True)
class Corpus:
    """A tokenized corpus on disk."""

    prefix: Path
    """Path of the `.bin/.idx` pair without its suffix."""
    vocab_size: int
    """The tokenizer's largest id + 1."""
    eod_id: int
    """The id of the token that ends each document."""
    tokens: int
    """Tokens of the pair, end-of-document tokens included."""
    documents: int
    utf8_bytes: int | None
    """Length of the documents' text in UTF-8; None if it is unknown, since the pair came without its text and its
    tokenizer is not byte-level."""
    token_bytes_path: Path | None
    """Path of the tokens' UTF-8 lengths (`.npy`, int32 [vocab_size]); None if the tokenizer is not byte-level."""
    tokenizer_folder: Path
    """The corpus's own copy of the tokenizer, in a form that loads fast."""
    tokenizer_fingerprint: str
    """`TextTokenizer.fingerprint` of the tokenizer that made the tokens."""
    fingerprint: str
    """SHA-256 (hex) of the pair's content."""
    source: str
    """The origin of the text, for people."""
    manifest: Path
    """The file from which `load_corpus` reads this corpus in another process."""


_FIELDS = tuple(field.name for field in fields(Corpus) if field.name != "manifest")
_PATHS = ("prefix", "token_bytes_path", "tokenizer_folder")
_REMEDY = "prepare the corpus again"


def manifest_path(prefix: Path) -> Path:
    """Return the path of a pair's manifest."""
    return prefix.with_name(prefix.name + ".manifest.json")


@dataclass(frozen=True)
class InputRecord:
    """An input file of a corpus."""

    path: str
    size_bytes: int
    sha256: str
    """SHA-256 (hex) of its content."""
    documents: int
    """Documents of the file that are in the corpus."""
    rejected: int
    """Unusable documents of the file."""


@dataclass(frozen=True)
class TokenizeRecord:
    """How a corpus was made from files; the manifest has it under `tokenized`."""

    KEY: ClassVar[str] = "tokenized"

    inputs: list[InputRecord]
    text_key: str
    """The key (JSONL) or the column (parquet) of the text."""
    engine: str
    """The library that encoded, with its version."""
    engine_reason: str | None
    """Why it was not tiktoken; None if it was."""
    bytes_per_token: float
    """UTF-8 bytes of text per token, end-of-document tokens included."""
    rejected: dict[str, int]
    """Number of documents skipped, by reason."""
    special_token_strings: dict[str, int]
    """How often names of special tokens occur in the text, where they are ordinary text."""
    versions: dict[str, str]
    """Versions of all that may decide how text becomes tokens."""
    max_document_mb: int | None = None
    """Size limit of a document, in megabytes; None if the corpus was made before there was a limit."""


def versions() -> dict[str, str]:
    """Return the versions of all that may decide how text becomes tokens."""
    libraries = {name: version(name) for name in ("tokenizers", "tiktoken", "pyarrow", "numpy")}
    return {"python": platform.python_version(), "unicode": unicodedata.unidata_version, **libraries}


def pair_checksums(prefix: Path) -> dict[Path, FileChecksums]:
    """Return the checksums of a pair's files."""
    return {path: file_checksums(path) for path in (bin_path(prefix), idx_path(prefix))}


def pair_fingerprint(prefix: Path, files: Mapping[Path, FileChecksums]) -> str:
    """Return `Corpus.fingerprint` of a pair whose files have these checksums."""
    return hashlib.sha256(f"{files[idx_path(prefix)].sha256} {files[bin_path(prefix)].sha256}".encode()).hexdigest()


class MakingRecord(Protocol):
    """A dataclass that says how a corpus was made."""

    KEY: ClassVar[str]
    """The record's key in the manifest."""
    __dataclass_fields__: ClassVar[dict[str, Any]]


Made = TypeVar("Made", bound=MakingRecord)


def save_corpus(corpus: Corpus, pair: Mapping[Path, FileChecksums], record: MakingRecord | None = None) -> None:
    """Write the manifest, with the checksums of every file, and the record of how the corpus was made if there is one.

    Paths inside the manifest's folder are relative, so that the folder can be moved. `pair` has the checksums of all
    files except the tokenizer and the token lengths.
    """
    folder = corpus.manifest.parent

    def written(value: Any) -> Any:
        if not isinstance(value, Path):
            return value
        return str(value.relative_to(folder) if value.is_relative_to(folder) else value.absolute())

    content: dict[str, Any] = {"format_version": FORMAT_VERSION}
    content |= {name: written(getattr(corpus, name)) for name in _FIELDS}
    others = [*sorted(corpus.tokenizer_folder.iterdir()), *filter(None, [corpus.token_bytes_path])]
    files = {**pair, **{path: file_checksums(path) for path in others}}
    content["files"] = {written(path): asdict(checksums) for path, checksums in files.items()}
    if record is not None:
        content[record.KEY] = asdict(record)
    write_file(corpus.manifest, (json.dumps(content, indent=2) + "\n").encode())


def load_corpus(manifest: Path) -> Corpus:
    """Read the corpus that a manifest describes.

    Raises:
        DataError: the manifest is missing or damaged, or of another version, or a file that it names is missing.
    """
    content = _read(manifest)
    if missing := [name for name in _FIELDS if name not in content]:
        raise DataError(f"{manifest} lacks the key {missing[0]!r}; {_REMEDY}")
    values: dict[str, Any] = {name: content[name] for name in _FIELDS}
    try:
        for name in _PATHS:
            values[name] = None if values[name] is None else manifest.parent / values[name]
        corpus = TypeAdapter(Corpus).validate_python({**values, "manifest": manifest})
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"{manifest} is damaged: {first['loc'][0]}: {first['msg']}; {_REMEDY}") from None
    except TypeError:
        raise DataError(f"{manifest} is damaged: one of its paths is no text; {_REMEDY}") from None
    for path in (corpus.tokenizer_folder, corpus.token_bytes_path):
        if path is not None and not path.exists():
            raise DataError(f"{path}, which {manifest} names, is missing; {_REMEDY}")
    return corpus


def load_checksums(manifest: Path) -> dict[Path, FileChecksums]:
    """Read the checksums of every file of a manifest's corpus, by path.

    Raises:
        DataError: the manifest is missing or damaged, or of another version.
    """
    try:
        files = TypeAdapter(dict[str, FileChecksums]).validate_python(_read(manifest).get("files"))
    except ValidationError:
        raise DataError(f"{manifest} is damaged: its key 'files' has no checksums; {_REMEDY}") from None
    return {manifest.parent / path: checksums for path, checksums in files.items()}


def _read(manifest: Path) -> dict[str, Any]:
    if not manifest.is_file():
        problem = "is no regular file" if manifest.exists() else "no such manifest"
        raise DataError(f"{manifest}: {problem}; {_REMEDY}")
    try:
        content = parse_json(read_whole(manifest))
    except OSError as error:
        raise DataError(f"{manifest} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{manifest} is not JSON ({error}); {_REMEDY}") from None
    found = content.get("format_version") if isinstance(content, dict) else None
    if found == FORMAT_VERSION:
        return dict(content)
    if found == 1:
        raise DataError(
            f"{manifest} is of format version 1, which has no checksums of all files: delete it and give the tokenizer "
            f"{manifest.parent / str(content.get('tokenizer_folder'))} (--tokenizer), or delete its .bin and .idx too "
            "and tokenize again"
        )
    raise DataError(f"{manifest} is not a corpus manifest of format version {FORMAT_VERSION}; {_REMEDY}")


def check_counts(corpus: Corpus, header: IndexedHeader) -> None:
    """Raise a DataError if a pair does not hold as many documents and tokens as its manifest says."""
    if (header.tokens, header.documents) != (corpus.tokens, corpus.documents):
        raise DataError(
            f"{corpus.prefix} holds {number_of(header.documents, 'document')} of {header.tokens:,} tokens, but "
            f"{corpus.manifest} says {corpus.documents:,} of {corpus.tokens:,}: one of them was replaced; {REMEDY}"
        )


def load_record(manifest: Path, kind: type[Made]) -> Made | None:
    """Read the record of this kind that a manifest holds; return None if it holds none.

    Raises:
        DataError: the manifest is missing or damaged.
    """
    found = _read(manifest).get(kind.KEY)
    try:
        return None if found is None else TypeAdapter(kind).validate_python(found)
    except ValidationError:
        raise DataError(f"{manifest} is damaged: its key {kind.KEY!r} is no record; {_REMEDY}") from None


def summary(corpus: Corpus) -> str:
    """Return a few lines that describe a corpus for people."""
    lines = [f"{corpus.prefix}: {number_of(corpus.documents, 'document')} of {corpus.tokens:,} tokens"]
    record = load_record(corpus.manifest, TokenizeRecord)
    if record is not None:
        lines.append(f"{record.bytes_per_token:.3f} bytes of text per token, encoded by {record.engine}")
        if record.engine_reason:
            lines.append(f"not by tiktoken: {record.engine_reason}")
        rejected = ", ".join(f"{count:,} {reason}" for reason, count in record.rejected.items())
        lines.append(f"documents skipped: {rejected or 'none'}")
        special = ", ".join(f"{count:,} x {string}" for string, count in record.special_token_strings.items())
        lines.append(f"names of special tokens in the text, kept as text: {special or 'none'}")
    lines.append(f"manifest: {corpus.manifest}")
    return "\n".join(lines)
