"""A pair that is built in parts: begun once, continued after any number of kills, complete with its manifest.

The parts lie in the folder `PREFIX.parts`, with `plan.json`, which holds all that decides the result. A part is some
files `NUMBER.KIND`, and `NUMBER.json` with what they hold, followed by the CRC-32 of that line. The last is written
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
    """A dataclass that says what a finished part holds."""

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
    """Make the folder of a pair's parts, with a copy of the tokenizer, unless it lies there already.

    Args:
        prefix: The pair's path without suffix.
        content: All that decides the result, as JSON can hold it; under `inputs`, path and SHA-256 of each file.
        tokenizer: It makes the tokens.

    Raises:
        DataError: the folder belongs to another plan, or the pair exists without it.
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
    """Make the parts that are not there yet, and return what each holds, in the order of `tasks`.

    Args:
        folder: That of the parts.
        make_part: Makes one part of its number and its task; pickled for other processes.
        tasks: What each part is made of; a part's number is its place here.
        kind: The dataclass that says what a part holds.
        workers: The processes.
        on_part: Called with the number of finished parts, and of all parts.

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
    """Writes a file, and keeps the CRC-32 of what it was given to write."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.crc32 = stream, 0

    def write(self, content: bytes) -> None:
        """Write `content`."""
        self.crc32 = zlib.crc32(content, self.crc32)
        self._stream.write(content)


@contextmanager
def part_files(folder: Path, number: int, kinds: Sequence[str]) -> Iterator[list[CountedFile]]:
    """Open a part's files for writing; they get their names at the end, and none of them after an error."""
    # The process id, since a worker may outlive its parent for a moment, beside the next run's workers.
    suffix = f"{os.getpid()}.partial"
    with ExitStack() as stack:
        paths = (part_file(folder, number, kind) for kind in kinds)
        yield [CountedFile(stack.enter_context(complete_file(path, suffix))) for path in paths]


def finish_part(folder: Path, number: int, counts: Counts) -> None:
    """Write what a part holds, whose files are on the disk: it is complete."""
    line = json.dumps(asdict(counts)).encode()
    write_file(part_file(folder, number, "json"), b"%b\n%08x\n" % (line, zlib.crc32(line)))


def finished_part(folder: Path, number: int, kind: type[Found]) -> Found | None:
    """Return what the part of this number holds; None if it is not complete or damaged, and has to be made."""
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
    """Move the tokenizer from the parts' folder beside the merged pair, write its tokens' lengths there too.

    Args:
        prefix: The pair's path without suffix.
        tokenizer: It made the tokens.
        checksums: Of the pair's files.
        size: Documents, tokens and UTF-8 bytes of text.
        source: Where the text came from, for people.
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
