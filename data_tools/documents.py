"""Documents from files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from data_tools.errors import DataError

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
TEXT_SUFFIXES = (".txt", ".text")
TEXT_KEY = "text"
TEXT_DOCUMENT_CHARACTERS = 4096


def read_documents(path: Path) -> Iterator[str]:
    """Yield the documents of a JSONL file (one object a line, key `text`) or of a plain text file (`.txt`), UTF-8.

    A plain text file does not say where its documents end, so it is cut into documents of about
    `TEXT_DOCUMENT_CHARACTERS` characters: at the first blank line from there on; else, from twice that length on, at
    the next line end; else, in a line that is longer still, where the limit falls. Documents without any visible
    character are left out. Memory stays bounded by the longest document.

    Raises:
        DataError: the file is missing, a folder, empty, of an unknown kind, not UTF-8, or holds no usable document;
            a JSONL line is not an object with a string under `text` (with file:line). All but the first four are
            raised while the documents are read.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder: give one file ({', '.join(JSONL_SUFFIXES + TEXT_SUFFIXES)})")
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if not path.is_file():
        raise DataError(f"{path} is not a regular file: it must be read twice, so a pipe will not do")
    suffix = path.suffix.lower()
    if suffix not in JSONL_SUFFIXES + TEXT_SUFFIXES:
        known = f"JSONL ({', '.join(JSONL_SUFFIXES)}) with the key {TEXT_KEY!r}, text ({', '.join(TEXT_SUFFIXES)})"
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; known: {known}")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    return _usable(path, _jsonl_texts(path) if suffix in JSONL_SUFFIXES else _text_pieces(path))


def _usable(path: Path, texts: Iterator[str]) -> Iterator[str]:
    found = False
    try:
        for text in texts:
            if text and not text.isspace():
                found = True
                yield text
    except UnicodeDecodeError:
        raise _not_utf8(path) from None
    if not found:
        raise DataError(f"{path} holds no usable document: every text in it is empty")


def _jsonl_texts(path: Path) -> Iterator[str]:
    # newline="\n": a carriage return alone is white space inside JSON, not the end of a line.
    with path.open(encoding="utf-8-sig", newline="\n") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.isspace():
                yield _jsonl_text(line, f"{path}:{number}")


def _jsonl_text(line: str, where: str) -> str:
    """The text of one JSON object; `where` is file:line."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not JSON at character {error.pos + 1} ({error.msg}); each line must be one object with the key "
            f"{TEXT_KEY!r}"
        ) from None
    except ValueError as error:  # a number beyond Python's limit of digits
        raise DataError(f"{where}: {error}") from None
    except RecursionError:
        raise DataError(f"{where}: the JSON is nested too deeply") from None
    if not isinstance(row, dict):
        raise DataError(
            f"{where}: a JSON object with the key {TEXT_KEY!r} is needed, the line holds: {_json_type(row)}"
        )
    if TEXT_KEY not in row:
        keys = ", ".join(map(repr, row)) or "none"
        raise DataError(f"{where}: the key {TEXT_KEY!r} is missing; keys there: {keys}")
    text = row[TEXT_KEY]
    if not isinstance(text, str):
        raise DataError(f"{where}: the key {TEXT_KEY!r} must hold a string, it holds: {_json_type(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        lone = text[error.start]
        raise DataError(f"{where}: half of a surrogate pair ({lone!r}) stands alone: it is no character") from None
    return text


def _json_type(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "Boolean", type(None): "null"}
    return names.get(type(value), "number")


def _text_pieces(path: Path) -> Iterator[str]:
    limit = TEXT_DOCUMENT_CHARACTERS
    with path.open(encoding="utf-8-sig") as stream:
        lines: list[str] = []
        length = 0
        while line := stream.readline(2 * limit):
            blank = line.isspace()
            if (length >= limit and blank) or length >= 2 * limit:
                yield "".join(lines).strip("\n")
                lines, length = [], 0
            lines.append(line)
            length += len(line)
        yield "".join(lines).strip("\n")


def _not_utf8(path: Path) -> DataError:
    """Where the first byte stands that is not UTF-8."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                byte = line[error.start]
                return DataError(f"{path}:{number}: not UTF-8: byte {error.start + 1} of the line is 0x{byte:02x}")
    return DataError(f"{path}: not UTF-8")
