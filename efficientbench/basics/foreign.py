"""Reads untrusted files: refuses devices that never end, and sizes and nesting that would crash the program.

Every file that a user names, or that lies in a folder which a user names, is opened by `open_regular` or checked by
`check_regular` before a library opens it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

if TYPE_CHECKING:
    import yaml

MOST_BYTES = 1 << 28
"""Largest file that is read at once, unless the caller sets another limit."""
MOST_LAYERS = 10_000
"""The most layers that a model may have: transformers, and a plan, make a list of them."""
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal obeys or that reorder text, and lone surrogates, which no file can hold."""
WEIGHTS = ".safetensors"
"""Suffix of weight files, which may be larger than MOST_BYTES."""
_MOST_CHARACTERS = 1 << 24
"""Longest YAML that is read, with every alias written out."""


def open_regular(path: Path, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: the file cannot be opened, or is a device, a pipe or a folder, which may never end.
    """
    descriptor = open_at_once(path, os.O_RDONLY)
    try:
        _refuse_irregular(os.fstat(descriptor), path)
        return open(descriptor, "rb", buffering)  # type: ignore[return-value]
    except BaseException:
        os.close(descriptor)
        raise


def open_at_once(path: str | Path, flags: int) -> int:
    """Return the descriptor of a file that is opened by `flags` without waiting for the other end of a pipe.

    Raises OSError: the file cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except BlockingIOError:
        # Another process holds a lease on it, or its file system fetches it from tape: that ends.
        _refuse_irregular(os.stat(path), path)
        return os.open(path, flags | os.O_CLOEXEC, 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        # Else reads and writes would fail where such a file system has to wait.
        os.set_blocking(descriptor, True)
    return descriptor


def check_regular(path: Path, most_bytes: int | None = None) -> None:
    """Check a file that a library is about to open by its name.

    Raises:
        OSError: the file is missing, is a device, a pipe or a folder, or has more than `most_bytes`.
    """
    found = path.stat()
    _refuse_irregular(found, path)
    if most_bytes is not None:
        _refuse_large(found, path, most_bytes)


def check_folder(folder: Path, patterns: Iterable[str]) -> None:
    """Check the files of a folder that a library is about to open by their names, such as a model's or a tokenizer's.

    Weights may have any size, since no library reads them at once.

    Raises:
        OSError: a matching file is a device, a pipe, a folder, a broken link, or too large.
    """
    for path in sorted(found for pattern in patterns for found in folder.glob(pattern)):
        check_regular(path, None if path.suffix == WEIGHTS else MOST_BYTES)


def read_whole(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: the file cannot be read, has more than `most_bytes`, or is a device, a pipe or a folder.
    """
    with open_regular(path) as file:
        _refuse_large(os.fstat(file.fileno()), path, most_bytes)
        return file.read()


def read_text(path: Path, encoding: str = "utf-8", most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a regular file, with its line ends unchanged.

    Raises:
        OSError: as `read_whole`.
        UnicodeDecodeError: the file is not text in this encoding.
    """
    return read_whole(path, most_bytes).decode(encoding)


def text_lines(stream: TextIO, path: Path) -> Iterator[str]:
    """Yield the lines of a text that may be of any size.

    Raises OSError: a line has more than MOST_BYTES characters, as a hole in a file makes it.
    """
    while line := stream.readline(MOST_BYTES + 1):
        if len(line) > MOST_BYTES:
            raise OSError(errno.EFBIG, f"a line has more than {MOST_BYTES:,} characters", str(path))
        yield line


def _refuse_irregular(found: os.stat_result, path: str | Path) -> None:
    if stat.S_ISFIFO(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file but a pipe: write its content into a file first", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))


def _refuse_large(found: os.stat_result, path: Path, most_bytes: int) -> None:
    if found.st_size > most_bytes:
        reason = f"it has {found.st_size:,} bytes, and {most_bytes:,} are the most that is read"
        raise OSError(errno.EFBIG, reason, str(path))


def parse_json(content: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply for Python.
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one where the file cannot be read or holds anything else."""
    try:
        content = parse_json(read_whole(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def parse_yaml(content: bytes | str) -> Any:
    """Return the value of a YAML text.

    Raises:
        yaml.YAMLError: the text is not YAML, or its aliases multiply it beyond `_MOST_CHARACTERS`.
        ValueError: a value is none of its kind.
        RecursionError: the text is nested too deeply.
    """
    # Imported here: scripts that read no YAML run without the package.
    import yaml

    # Not the loader in C, which crashes the process where brackets nest deeply.
    loader = yaml.SafeLoader(content)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        # Before the values are made: merge keys (<<) write their aliases out then.
        if _written_out(node, {}) > _MOST_CHARACTERS:
            raise yaml.YAMLError(f"with its aliases written out it has more than {_MOST_CHARACTERS:,} characters")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def parse_own_yaml(content: str) -> Any:
    """Return the value of a table of the program's own, by libyaml where it is there: in a twentieth of the time."""
    import yaml

    return yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _written_out(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the characters of a node with every alias written out; `known` has those of nodes already seen, by id."""
    if id(node) not in known:
        # While it is counted: an alias of a node within itself never ends.
        known[id(node)] = _MOST_CHARACTERS
        if isinstance(node.value, str):
            inner = len(node.value)
        else:
            parts = (each if isinstance(each, tuple) else (each,) for each in node.value)
            inner = sum(_written_out(below, known) for part in parts for below in part)
        known[id(node)] = 1 + inner
    return known[id(node)]


def plain_text(text: str) -> str:
    """Replace the characters that a terminal would obey by U+FFFD; line breaks and tabs stay."""
    return _UNPRINTABLE.sub("\ufffd", text)


def plain_texts(value: Any) -> Any:
    """Return a JSON value with `plain_text` applied to every text in it; numbers, booleans and null stay."""
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, list):
        # Most long lists hold only numbers.
        return value if _HOLDS_TEXT.isdisjoint(map(type, value)) else [plain_texts(each) for each in value]
    if isinstance(value, dict):
        return {plain_texts(key): plain_texts(each) for key, each in value.items()}
    return value


_HOLDS_TEXT = {str, list, dict}
