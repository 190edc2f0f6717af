"""Runs on a damaged corpus: they stop with one line that names the place."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from support.command_line import efficientbench, failure, record
from support.pairs import grow
from support.text_files import TEXTS, write_kind

from efficientbench.basics.files import BLOCK_BYTES
from efficientbench.data_tools.tokenizer.tokenizer import train_tokenizer
from efficientbench.data_tools.tokenizing.tokenize import tokenize_files
from efficientbench.data_tools.tokens.indexed import bin_path
from efficientbench.data_tools.tokens.intact import WHOLE_BYTES


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A tokenized corpus of more than a block."""
    train_tokenizer(TEXTS[:50], 300, tmp_path / "bpe")
    texts = [f"{copy} {text}" for copy in range(20) for text in TEXTS]
    source = write_kind(tmp_path, "jsonl", texts)
    return tokenize_files([source], tmp_path / "tokens", tmp_path / "bpe").prefix


def change_every_tenth_token(prefix: Path) -> None:
    tokens = np.memmap(bin_path(prefix), np.uint16, "r+", shape=(BLOCK_BYTES // 2,))
    tokens[::10] = (tokens[::10] + 1) % 290


def test_a_corpus_with_every_tenth_token_changed_is_refused(
    tiny: tuple[str, ...], folder: Path, prefix: Path, tmp_path: Path
) -> None:
    change_every_tenth_token(prefix)
    refused = efficientbench(*tiny, "--data", str(prefix), f"data.cache={tmp_path / 'data'}")
    assert refused.returncode == 2
    named = f"{bin_path(prefix)}: bytes 0 to 1,048,576: not what was written there, by the checksums in "
    assert refused.stderr.startswith(f"error: {named}{prefix}.manifest.json: put the right file back, or delete")
    assert refused.stderr.count("\n") == 1
    # No attempt, which reports would show as a failed run.
    assert [path.name for path in folder.iterdir()] == ["lock"]


@pytest.mark.proof
def test_damage_in_a_corpus_too_large_to_verify_first_stops_the_run(
    tiny: tuple[str, ...], folder: Path, prefix: Path, tmp_path: Path
) -> None:
    grow(prefix, WHOLE_BYTES + 1)
    overrides = ("training.seq_len=512", f"data.cache={tmp_path / 'data'}", "parallel.dp=2")
    words = (*tiny, "--data", str(prefix), *overrides)
    whole = efficientbench(*words)
    assert whole.returncode == 0, whole.stderr
    assert record(folder)["data"][0]["verified"] == "blocks read"
    with bin_path(prefix).open("r+b") as tokens:
        for block in range(WHOLE_BYTES // BLOCK_BYTES):
            tokens.seek(block * BLOCK_BYTES)
            tokens.write(b"\x07")
    stopped = efficientbench(*words)
    assert stopped.returncode == 2, stopped.stdout + stopped.stderr
    assert "Traceback" not in stopped.stdout + stopped.stderr
    assert failure(folder)["kind"] == "mistake"
    assert re.search(r"tokens\.bin: bytes [\d,]+ to [\d,]+: not what was written there", failure(folder)["reason"])
    assert stopped.stderr.count(str(bin_path(prefix))) == 1
