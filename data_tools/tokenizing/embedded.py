"""The embedded sample: English text that every Python installation carries.

It consists of the interpreter's own documentation topics (`pydoc_data.topics`) and the docstrings of the standard
library, read from the source files without importing them: on Python 3.11 3,628 documents, 1,952,027 bytes of UTF-8.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import random
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from efficientbench.basics.errors import DataError

MIN_DOCUMENT_CHARACTERS = 120
MIN_SAMPLE_BYTES = 200_000
SHUFFLE_SEED = 1234

_SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
"""Folders of tests, which contain no prose, and of foreign packages inside the library's folder."""

_TOPICS_FILE = ("pydoc_data", "topics.py")

_Documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
"""Syntax tree nodes that can have a docstring, and contain further such nodes."""


def embedded_documents() -> Iterator[str]:
    """Yield the sample's documents, cleaned of indentation, without duplicates, in a fixed shuffled order.

    The same Python version with the same parts installed yields the same documents, wherever it is installed. Through
    the shuffle, any split by position draws training and validation data from one distribution.

    Raises:
        DataError: the library has less than `MIN_SAMPLE_BYTES` of text, since parts of it are not installed.
    """
    found = {cleaned: None for raw in _raw_documents() if len(cleaned := _clean(raw)) >= MIN_DOCUMENT_CHARACTERS}
    documents = list(found)
    total_bytes = sum(len(document.encode()) for document in documents)
    if total_bytes < MIN_SAMPLE_BYTES:
        raise DataError(
            f"the embedded sample needs {MIN_SAMPLE_BYTES:,} bytes of documentation from the Python installation, but "
            f"{_library_folder()} has {total_bytes:,}: install the complete standard library with its sources (on "
            "Debian: libpython3-stdlib), use another Python, or give a text of your own (JSONL or .txt)"
        )
    random.Random(SHUFFLE_SEED).shuffle(documents)
    yield from documents


def as_jsonl(documents: Iterable[str], text_key: str) -> bytes:
    """Return a file of JSONL with a document a line."""
    return b"".join(json.dumps({text_key: document}).encode() + b"\n" for document in documents)


def embedded_checksum() -> str:
    """Return the SHA-256 (hex) of everything that decides the documents, in a fraction of the time to parse them."""
    digest = hashlib.sha256(f"{MIN_DOCUMENT_CHARACTERS} {SHUFFLE_SEED}".encode())
    for path in _library_sources():
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def most_embedded_bytes() -> int:
    """Return the size of the library's sources, of which the documents are a part."""
    return sum(path.stat().st_size for path in _library_sources())


def _library_folder() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _library_sources() -> list[Path]:
    """Return the standard library's source files, ordered by their path inside the library's folder."""
    folder = _library_folder()
    sources = []
    for name in sorted(sys.stdlib_module_names):
        module = folder / f"{name}.py"
        candidates = [module] if module.is_file() else sorted((folder / name).rglob("*.py"))
        sources += [path for path in candidates if not _SKIPPED_FOLDERS & set(path.relative_to(folder).parts[:-1])]
    return sources


def _raw_documents() -> Iterator[str]:
    for path in _library_sources():
        yield from _topic_texts(path) if path.parts[-2:] == _TOPICS_FILE else _docstrings(path)


def _topic_texts(path: Path) -> Iterator[str]:
    """Yield the values of the one dictionary that the topics file assigns, ordered by topic."""
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict):
            topics = ast.literal_eval(node.value)
            yield from (topics[name] for name in sorted(topics))


def _docstrings(path: Path) -> Iterator[str]:
    source = path.read_bytes()
    if b'"""' not in source and b"'''" not in source:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old modules have invalid escapes
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):  # a few files of the library are broken on purpose
            return
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, _Documented):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield docstring
            pending += reversed(node.body)


def _clean(text: str) -> str:
    # Escapes in a docstring may make lone surrogates, which have no UTF-8 form.
    return inspect.cleandoc(text).strip().encode("utf-8", "ignore").decode()
