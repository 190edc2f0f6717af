"""Every format that is read, damaged: the same value, or a message with the file's name. Never a traceback.

So it is with what is no file: nothing waits for it, or reads it until no memory is left.
Where a checksum covers a file, never another value either.
"""

from __future__ import annotations

import json
import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.formats import MESSAGES, NAMES, Format, every_format


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Format]:
    return every_format(tmp_path_factory.mktemp)


ODD = (None, True, -1, 2**70, 1.5, "x", "\ud800", [], {}, [[1]], {"a": {}})
HOSTILE = (
    b"",
    b"\0",
    b"{}",
    b"[]",
    b"null",
    b"[" * 100_000,
    b'{"a":' * 20_000,
    b"9" * 5000,
    b"\xff\xfe",
    b"&a [*a, *a]",
)


def spots(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values within JSON."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(spot for key, each in below for spot in spots(each, (*place, key)))]


def replaced(value: Any, place: tuple[Any, ...], by: object) -> Any:
    if not place:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = replaced(value[place[0]], place[1:], by)
    return copy


@st.composite
def damages(draw: st.DrawFn, content: bytes) -> bytes:
    """The content with a few bytes changed, cut or put in; or, of JSON, with another value at one place."""
    with suppress(ValueError):
        if draw(st.booleans()):
            value = json.loads(content)
            place = draw(st.sampled_from(spots(value)[:300]))
            return json.dumps(replaced(value, place, draw(st.sampled_from(ODD)))).encode()
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(HOSTILE))
    begin = draw(st.integers(0, len(content)))
    end = draw(st.sampled_from((begin, begin + 1, begin + 8, len(content))))
    return content[:begin] + draw(st.binary(max_size=9)) + content[end:]


@pytest.mark.parametrize("examples", [5, pytest.param(25, marks=pytest.mark.proof)])
@pytest.mark.parametrize("name", NAMES)
def test_damage_is_told_or_does_not_matter(formats: dict[str, Format], name: str, examples: int) -> None:
    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
    @given(st.data())
    def tried(data: st.DataObject) -> None:
        damage_and_read(formats[name], data)

    tried()


def damage_and_read(known: Format, data: st.DataObject) -> None:
    content = known.path.read_bytes()
    expected = known.read()
    damaged = data.draw(damages(content))
    known.path.write_bytes(damaged)
    value, message = None, None
    try:
        value = known.read()
    except MESSAGES as error:
        message = str(error)
    finally:
        known.path.write_bytes(content)
    if message is None:
        assert value == expected or not known.checked
    else:
        # The file or, for what it says of others, a folder that holds it.
        assert known.path.name in message or any(str(folder) in message for folder in known.path.parents[:2])


def test_every_format_is_damaged(formats: dict[str, Format]) -> None:
    assert sorted(formats) == sorted(NAMES)


HOLE_BYTES = 40 * 10**9
MOST_MEMORY_BYTES = 3 << 30
"""What a reader may take beyond what the process has already."""
READ_TO_THE_END = ("jsonl", "jsonl.gz", "jsonl.zst", "txt", "split", "hashes")
"""Files of any size that are read, or hashed, in pieces: a hole of 40 GB takes a minute, and no memory."""


def hole(path: Path) -> None:
    path.touch()
    os.truncate(path, HOLE_BYTES)


KINDS: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a device without end": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a hole of 40 GB": hole,
}


@contextmanager
def little_memory() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    (used_kib,) = re.findall(r"^VmData:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    resource.setrlimit(resource.RLIMIT_DATA, (int(used_kib) * 1024 + MOST_MEMORY_BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)


@contextmanager
def something_else(path: Path, make: Callable[[Path], None]) -> Iterator[None]:
    aside = path.with_name("aside")
    path.rename(aside)
    try:
        make(path)
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        aside.rename(path)


CASES = [
    (name, kind) for name in NAMES for kind in KINDS if not (name in READ_TO_THE_END and kind == "a hole of 40 GB")
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_what_is_no_file_is_told_or_does_not_matter(formats: dict[str, Format], name: str, kind: str) -> None:
    known, message = formats[name], None
    with something_else(known.path, KINDS[kind]), little_memory():
        try:
            known.read()
        except MESSAGES as error:
            message = str(error)
    # The file or, for what it says of others, a folder that holds it.
    places = (known.path.name, *map(str, known.path.parents[:2]))
    assert message is None or any(place in message for place in places)
