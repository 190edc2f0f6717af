"""The embedded sample: enough real text, the same wherever Python is installed."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.tokenizing.embedded import (
    MIN_DOCUMENT_CHARACTERS,
    embedded_checksum,
    embedded_documents,
)

LIBRARY = Path(sysconfig.get_path("stdlib"))


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return list(embedded_documents())


def use_library(monkeypatch: pytest.MonkeyPatch, folder: Path, *names: str) -> None:
    """Link some of the library's modules, or all, from another folder, and make that the library's."""
    folder.mkdir()
    for path in LIBRARY.iterdir():
        if not names or path.name in names:
            (folder / path.name).symlink_to(path)
    monkeypatch.setattr(sysconfig, "get_path", {"stdlib": str(folder)}.__getitem__)


def test_the_embedded_sample_is_english_text_without_duplicates(documents: list[str]) -> None:
    assert sum(len(document.encode()) for document in documents) > 1_000_000
    assert len(set(documents)) == len(documents) > 1000
    assert min(map(len, documents)) >= MIN_DOCUMENT_CHARACTERS
    words = " ".join(documents).lower().split()
    assert words.count("the") / len(words) > 0.03
    assert any("The Python Debugger" in document for document in documents), "the documentation topics"
    assert any("Functions that read and write gzipped files." in document for document in documents), "the docstrings"


def test_train_and_validation_parts_have_the_same_kinds_of_text(documents: list[str]) -> None:
    """Without a shuffle, the last tenth would be modules from late in the alphabet only, and the topics be first."""
    tenth = len(documents) // 10
    # Frequent enough for chance to spread them, whatever a distribution's Python has left out.
    for word in ("class", "file", "object", "string"):
        first, last = (sum(word in document for document in part) for part in (documents[:-tenth], documents[-tenth:]))
        assert 0.5 < last / (first / 9) < 2


def test_the_embedded_sample_does_not_depend_on_the_installation_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksum = embedded_checksum()
    use_library(monkeypatch, tmp_path / "lib")
    assert embedded_checksum() == checksum
    samples = []
    for place in ("z", "a"):
        use_library(monkeypatch, tmp_path / place, "pydoc_data", "asyncio", "typing.py")
        samples.append(list(embedded_documents()))
    assert samples[0] == samples[1] != []


def test_missing_parts_are_replaced_until_too_little_text_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_library(monkeypatch, tmp_path / "some", "pydoc_data")
    with_topics = embedded_checksum()
    assert sum(len(document.encode()) for document in embedded_documents()) > 200_000
    use_library(monkeypatch, tmp_path / "few", "json", "email")
    assert embedded_checksum() != with_topics
    with pytest.raises(DataError, match=r"needs 200,000 bytes .* has [1-9][0-9,]+: install the complete"):
        list(embedded_documents())


@pytest.mark.usefixtures("documents")
def test_modules_are_read_without_importing_them() -> None:
    assert "antigravity" not in sys.modules  # it would open a browser
