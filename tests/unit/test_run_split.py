"""A split without documents is refused before the engine, which would search it for ever, is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from megatron.core.datasets.blended_megatron_dataset_config import (
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)

from data_tools.corpus import Corpus
from efficientbench.config.errors import ConfigError
from efficientbench.run import _check_split

SPLITS = [(99, 1, 0), (50, 50, 0), (1, 1, 1), (98, 1, 1), (100, 0, 0)]


def corpus_of(documents: int) -> Corpus:
    nowhere = Path("nowhere")
    return Corpus(
        prefix=nowhere,
        vocab_size=9,
        eod_id=0,
        tokens=documents,
        documents=documents,
        utf8_bytes=None,
        token_bytes_path=None,
        tokenizer_folder=nowhere,
        tokenizer_fingerprint="",
        fingerprint="",
        source="text.jsonl",
        manifest=nowhere,
    )


def engine_serves(documents: int, split: tuple[float, ...]) -> bool:
    """Whether every split that the engine builds gets a document, by the engine's own bounds."""
    bounds = convert_split_vector_to_split_matrix(parse_and_normalize_split(",".join(map(str, split))))
    counts = [0 if each is None else round(each[1] * documents) - round(each[0] * documents) for each in bounds]
    return all(count > 0 for count, part in zip(counts, (1, 1, split[2]), strict=True) if part)


@pytest.mark.parametrize("split", SPLITS)
def test_refuses_what_the_engine_cannot_serve(split: tuple[float, float, float]) -> None:
    for documents in range(1, 300):
        try:
            _check_split(split, corpus_of(documents))
        except ConfigError:
            accepted = False
        else:
            accepted = True
        assert accepted == engine_serves(documents, split), documents


def test_the_advice_holds() -> None:
    with pytest.raises(
        ConfigError,
        match=r"\[99, 1, 0\] leaves none of the 20 documents of text.jsonl for validation; "
        r"set data.split=\[19,1,0\]",
    ):
        _check_split((99, 1, 0), corpus_of(20))
    _check_split((19, 1, 0), corpus_of(20))
    with pytest.raises(ConfigError, match="more are needed"):
        _check_split((99, 1, 0), corpus_of(1))
