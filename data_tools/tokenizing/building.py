"""Builds a pair in parts: begun once, resumed after any number of kills, complete with its manifest.

The folder `PREFIX.parts` holds the parts, and `plan.json` with everything that decides the result. A part is several
files `NUMBER.KIND`, and `NUMBER.json`: a line with their counts, then the CRC-32 of that line. `NUMBER.json` is written
last: a part that has one is complete.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol, TypeVar

from efficientbench.basics.errors import DataError
from efficientbench.basics.files import FileChecksums, beside, complete_file, file_blocks, remove_partial, write_file
from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.data_tools.tokenizing.parallel import Workers
from efficientbench.data_tools.tokenizing.plan import compare_plans, read_plan
from efficientbench.data_tools.tokens.indexed import bin_path, idx_path
from efficientbench.data_tools.tokens.manifest import Corpus, manifest_path, pair_fingerprint

logger = logging.getLogger(__name__)


class Counts(Protocol):
    """A dataclass with the counts of a finished part."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def crc32(self) -> dict[str, int]:
        """CRC-32 of the part's files, by their kinds."""


Found = TypeVar("Found", bound=Counts)
Task = TypeVar("Task")


def parts_folder(prefix: Path) -> Path:
    """Return the folder of a pair's parts."""
    return beside(prefix, "parts")


def begin(prefix: Path, content: Mapping[str, Any], tokenizer: TextTokenizer) -> None:
    """Make the folder of a pair's parts, or check the plan in the existing one, and copy the tokenizer into it.

    Args:
        prefix: The pair's path without suffix.
        content: The plan, as JSON: everything that decides the result; `inputs` has path and SHA-256 of each file.
        tokenizer: The tokenizer that makes the tokens.

    Raises:
        DataError: the folder belongs to another plan, or the pair exists without the folder.
    """
    folder = parts_folder(prefix)
    plan = folder / "plan.json"
    if not plan.exists():
        shutil.rmtree(folder, ignore_errors=True)
        if found := [path for path in (bin_path(prefix), idx_path(prefix)) if path.exists()]:
            raise DataError(f"{found[0]} exists already, and this command did not make it: choose another name")
        folder.mkdir()
        write_file(plan, json.dumps(content).encode())
    remedy = f"delete the folder {folder} to begin again"
    compare_plans(read_plan(plan, remedy), content, prefix, remedy)
    remove_partial(folder)
    tokenizer.save(folder / "tokenizer")


def make_parts(
    folder: Path,
    make_part: Callable[[tuple[int, Task]], Found],
    tasks: Sequence[Task],
    kind: type[Found],
    workers: Workers,
    on_part: Callable[[int, int], None],
) -> list[Found]:
    """Make the missing parts, and return the counts of all parts, in the order of `tasks`.

    Args:
        folder: The folder of the parts.
        make_part: Makes one part from its number and its task; pickled for other processes.
        tasks: The input of each part; a part's number is the index of its task.
        kind: The dataclass with the counts of a part.
        workers: The processes that make the parts.
        on_part: Called with the number of finished parts and the number of all parts.

    Raises:
        DataError: a worker process died. Errors of `make_part` are raised as they are.
    """
    counts = [finished_part(folder, number, kind) for number in range(len(tasks))]
    missing = [number for number, count in enumerate(counts) if count is None]
    done = len(counts) - len(missing)
    if missing and done:
        logger.info("continuing from %d finished parts of %d", done, len(counts))
    numbered = [(number, tasks[number]) for number in missing]
    for (number, _), count in workers.run(make_part, folder / "make_part.pickle", numbered):
        counts[number] = count
        done += 1
        on_part(done, len(counts))
    return [count for count in counts if count is not None]


class CountedFile:
    """Writes a file, and computes the CRC-32 of its content."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.crc32 = stream, 0

    def write(self, content: bytes) -> None:
        """Write `content`."""
        self.crc32 = zlib.crc32(content, self.crc32)
        self._stream.write(content)


@contextmanager
def part_files(folder: Path, number: int, kinds: Sequence[str]) -> Iterator[list[CountedFile]]:
    """Open a part's files for writing; they get their names at the end, unless an error ends the block."""
    # With the process id, since a worker may outlive its parent for a moment, beside the next run's workers.
    suffix = f"{os.getpid()}.partial"
    with ExitStack() as stack:
        paths = (part_file(folder, number, kind) for kind in kinds)
        yield [CountedFile(stack.enter_context(complete_file(path, suffix))) for path in paths]


def finish_part(folder: Path, number: int, counts: Counts) -> None:
    """Write the counts of a part whose files are on the disk, which completes the part."""
    line = json.dumps(asdict(counts)).encode()
    write_file(part_file(folder, number, "json"), b"%b\n%08x\n" % (line, zlib.crc32(line)))


def finished_part(folder: Path, number: int, kind: type[Found]) -> Found | None:
    """Return the counts of a part; None if the part is missing, incomplete or damaged, and has to be made."""
    try:
        line, crc32 = read_whole(part_file(folder, number, "json")).splitlines()
        if zlib.crc32(line) != int(crc32, 16):
            return None
        counts = kind(**parse_json(line))
        found = {each: _crc32(part_file(folder, number, each)) for each in counts.crc32}
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return counts if found == counts.crc32 else None


def part_file(folder: Path, number: int, kind: str) -> Path:
    """Return the path of one of a part's files."""
    return folder / f"{number:06}.{kind}"


def _crc32(path: Path) -> int:
    crc32 = 0
    for block in file_blocks(path):
        crc32 = zlib.crc32(block, crc32)
    return crc32


def corpus_of_parts(
    prefix: Path,
    tokenizer: TextTokenizer,
    checksums: Mapping[Path, FileChecksums],
    size: tuple[int, int, int],
    source: str,
) -> Corpus:
    """Return a merged pair's corpus; move the tokenizer from the parts' folder beside it, and write token lengths.

    Args:
        prefix: The pair's path without suffix.
        tokenizer: The tokenizer that made the tokens.
        checksums: The checksums of the pair's files, by path.
        size: The numbers of documents, tokens and UTF-8 bytes of text.
        source: The origin of the text, for people.
    """
    lengths_path = tokenizer.save_token_bytes(beside(prefix, "token_bytes.npy"))
    folder = beside(prefix, "tokenizer")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(parts_folder(prefix) / "tokenizer", folder)
    documents, tokens, utf8_bytes = size
    return Corpus(
        prefix=prefix,
        vocab_size=tokenizer.vocab_size,
        eod_id=tokenizer.eod_id,
        tokens=tokens,
        documents=documents,
        utf8_bytes=utf8_bytes,
        token_bytes_path=lengths_path,
        tokenizer_folder=folder,
        tokenizer_fingerprint=tokenizer.fingerprint,
        fingerprint=pair_fingerprint(prefix, checksums),
        source=source,
        manifest=manifest_path(prefix),
    )
