"""Checks of a run's corpora before any rank starts: one tokenizer, and documents in every split."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from megatron.core.datasets.blended_megatron_dataset_config import (
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.config.load import resolve
from efficientbench.data_tools.tokenizer.tokenizer import train_tokenizer
from efficientbench.data_tools.tokenizing.corpus import Corpus
from efficientbench.data_tools.tokens.manifest import pair_checksums, save_corpus
from efficientbench.planning.plan import plan_anywhere
from efficientbench.running.corpora import check_ends, check_split, prepare_corpora
from efficientbench.running.run import counted, run

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


def test_a_text_that_is_not_there_leaves_no_folder_of_a_run(tmp_path: Path) -> None:
    words = (f"data.path={tmp_path / 'typo.txt'}", f"output={tmp_path / 'out'}", "device=cpu")
    with pytest.raises(DataError, match=r"typo\.txt: no such file"):
        run(resolve("gqa_0.5B", smoke=True, overrides=words), "dsw")
    assert not (tmp_path / "out").exists()


def test_raw_conversations_are_to_be_made_into_a_pair_first(tmp_path: Path) -> None:
    raw = tmp_path / "good.jsonl"
    raw.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    words = (f"data.path={raw}", "training.objective=sft", f"data.cache={tmp_path / 'cache'}")
    with pytest.raises(ConfigError, match=r"good\.jsonl has none: make conversations with one \(efficient"):
        prepare_corpora(resolve("gqa_0.5B", smoke=True, overrides=words))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_that_the_engine_cannot_serve_is_refused(split: tuple[float, float, float]) -> None:
    for documents in range(1, 300):
        expectation = nullcontext() if engine_serves(documents, split) else pytest.raises(ConfigError)
        with expectation:
            check_split(split, corpus_of(documents))


def test_the_advised_split_is_accepted() -> None:
    with pytest.raises(
        ConfigError,
        match=r"\[99, 1, 0\] leaves none of the 20 documents of text.jsonl for validation; "
        r"set data.split=\[19,1,0\]",
    ):
        check_split((99, 1, 0), corpus_of(20))
    check_split((19, 1, 0), corpus_of(20))
    with pytest.raises(ConfigError, match="more are needed"):
        check_split((99, 1, 0), corpus_of(1))


def text(path: Path, word: str) -> Path:
    path.write_text("".join(json.dumps({"text": f"{word} {number} " * 9}) + "\n" for number in range(120)))
    return path


def test_a_blend_of_texts_with_two_tokenizers_is_refused(tmp_path: Path) -> None:
    paths = [text(tmp_path / f"{word}.jsonl", word) for word in ("apple", "pear")]
    blend = f"data.path=[3,{paths[0]},1,{paths[1]}]"
    overrides = [blend, f"data.cache={tmp_path / 'cache'}", "data.trained_vocab_size=300"]
    with pytest.raises(ConfigError, match=r"apple.jsonl and .*pear.jsonl have different tokenizers .*data.tokenizer"):
        prepare_corpora(resolve("gqa_1.5B", True, overrides))
    train_tokenizer(["apple pear 1 2 3"], 300, tmp_path / "tokenizer")
    config = resolve("gqa_1.5B", True, [*overrides, f"data.tokenizer={tmp_path / 'tokenizer'}"])
    corpora = prepare_corpora(config)
    assert [corpus.source for corpus in corpora] == list(map(str, paths))
    assert corpora[0].tokenizer_fingerprint == corpora[1].tokenizer_fingerprint
    # The tokenized pairs of the same texts, as a blend of prefixes.
    pairs = f"data.path=[3,{corpora[0].prefix},1,{corpora[1].prefix}]"
    again = prepare_corpora(resolve("gqa_1.5B", True, [pairs]))
    assert [corpus.fingerprint for corpus in again] == [corpus.fingerprint for corpus in corpora]
    with pytest.raises(ConfigError, match=r"data.split: .* of the 120 documents of .*apple.jsonl for validation"):
        prepare_corpora(config.model_copy(update={"data": config.data.model_copy(update={"split": (999, 1, 0)})}))


def test_training_steps_whose_order_exceeds_the_memory_are_refused() -> None:
    """The engine counts its epochs one by one, and would never begin to train."""
    corpora = [replace(corpus_of(3628), tokens=500_000)]

    def check(steps: int) -> None:
        counted(plan_anywhere(resolve("gqa_1.5B", True, [f"training.steps={steps}"])), corpora, 16 << 30)

    check(100_000)
    with pytest.raises(
        ConfigError, match=r"training\.steps: the order of .* GB of memory, and this machine has 17\.2 GB"
    ):
        check(2**62)


def test_documents_without_the_token_that_ends_them_are_refused(tmp_path: Path) -> None:
    train_tokenizer(["apple pear 1 2 3"] * 50, 300, tmp_path / "tokenizer")
    source = text(tmp_path / "apple.jsonl", "apple")
    overrides = [f"data.path={source}", f"data.cache={tmp_path}", f"data.tokenizer={tmp_path / 'tokenizer'}"]
    (corpus,) = prepare_corpora(resolve("gqa_1.5B", True, [*overrides, "data.attention_within_documents=true"]))
    with pytest.raises(ConfigError, match=r"attention_within_documents: document 0 of .*apple\.jsonl ends with token"):
        check_ends(replace(corpus, eod_id=corpus.eod_id + 1))


def test_tokens_outside_the_vocabulary_are_named_before_training(tmp_path: Path) -> None:
    """A manifest with checksums of its own says nothing about the tokens."""
    train_tokenizer(["apple pear 1 2 3"] * 50, 300, tmp_path / "tokenizer")
    source = text(tmp_path / "apple.jsonl", "apple")
    overrides = [f"data.path={source}", f"data.cache={tmp_path}", f"data.tokenizer={tmp_path / 'tokenizer'}"]
    (corpus,) = prepare_corpora(resolve("gqa_1.5B", True, overrides))
    save_corpus(replace(corpus, vocab_size=100), pair_checksums(corpus.prefix))
    overrides = [f"data.path={corpus.prefix}", f"data.cache={tmp_path / 'other'}"]
    with pytest.raises(DataError, match=r"tokens\.bin: byte .*: token \d+ lies outside .* vocabulary of 100"):
        prepare_corpora(resolve("gqa_1.5B", True, overrides))
