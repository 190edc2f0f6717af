"""What several tests of one subject share."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from replicas.fake_cuda.processes import build
from support.text_files import TEXTS, jsonl

from efficientbench.data_tools.tokenizer.tokenizer import train_tokenizer
from efficientbench.data_tools.tokenizing import inputs


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer trained on TEXTS."""
    folder = tmp_path_factory.mktemp("tokenizer") / "bpe"
    train_tokenizer(TEXTS, 400, folder)
    return folder


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small files have many parts."""
    monkeypatch.setattr(inputs, "PART_BYTES", 20_000)


@pytest.fixture
def compressed(tmp_path: Path) -> list[Path]:
    """Compressed files of three documents each, of which each is one part."""
    paths = [tmp_path / f"{name}.jsonl.gz" for name in "abc"]
    for path in paths:
        path.write_bytes(gzip.compress(jsonl([f"from {path.name}"] * 3)))
    return paths


@pytest.fixture(scope="session")
def fake_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a GPU that has no memory and no numbers."""
    return build(tmp_path_factory.mktemp("fake_cuda"))
