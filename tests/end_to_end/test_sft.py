"""SFT through the command line: what it records, what it refuses, and a run that was killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import Finished, efficientbench, losses, record, steps
from support.conversation_pairs import VOCABULARY, write_conversations

from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments

SFT = (
    "training.objective=sft",
    f"model.vocab_size={VOCABULARY}",
    "training.steps=40",
    "checkpoint.interval=10",
    "data.split=[9,1,0]",
)
SEQ_LEN = 32


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_conversations(tmp_path_factory.mktemp("pair"), 300)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_conversations(tmp_path_factory.mktemp("other"), 5)


@pytest.fixture(scope="module")
def whole(train: Callable[..., Finished], pair: Path) -> Finished:
    """A run that nothing disturbed."""
    finished = train(*SFT, f"data.path={pair}")
    assert finished.done.returncode == 0, finished.done.stderr
    return finished


@pytest.mark.proof
def test_the_record_has_computed_and_supervised_tokens(whole: Finished, pair: Path) -> None:
    found, lines = record(whole.folder), [line for line in steps(whole.folder) if line["kind"] == "step"]
    measured = [line for line in lines if line["measured"]]
    assert {line["tokens"] for line in lines} == {4 * SEQ_LEN}
    assert found["tokens"] == len(measured) * 4 * SEQ_LEN
    assert found["supervised_tokens"] == sum(line["supervised_tokens"] for line in measured)
    assert 0 < found["supervised_tokens"] < found["tokens"]
    share = found["supervised_tokens"] / found["tokens"]
    assert found["supervised_tokens_per_s"] == pytest.approx(share * found["tokens_per_s"])
    if found["energy_j"] is None:
        assert found["unavailable"]["energy_j_per_supervised_token"] == found["unavailable"]["energy_j_per_token"]
    lengths = IndexedDocuments(pair).lengths()
    too_long = int((lengths > SEQ_LEN + 1).sum())
    assert 0 < found["data"][0]["too_long"] <= too_long
    assert (
        f"conversations are packed without cutting: {too_long:,} with more than 33 tokens are skipped"
        in whole.done.stdout
    )
    assert losses(whole.folder)[-1] < losses(whole.folder)[0]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((), "training.objective=sft learns what a mask marks, and the sample text has none: make conversations with"),
        pytest.param(
            ("data.path=[1,{pair},1,{other}]",),
            "training.objective=sft takes one source, and data.path has 2: name all",
            marks=pytest.mark.proof,
        ),
        pytest.param(
            ("data.path={pair}", "training.seq_len=6"),
            "no conversation for training fits into training.seq_len=6, and none is cut",
            marks=pytest.mark.proof,
        ),
    ],
)
def test_a_corpus_without_conversations_is_refused(
    tiny: tuple[str, ...], pair: Path, other: Path, overrides: tuple[str, ...], message: str
) -> None:
    words = [word.replace("{pair}", str(pair)).replace("{other}", str(other)) for word in overrides]
    done = efficientbench(*tiny, "training.objective=sft", "model.vocab_size=5000", *words, expect=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
