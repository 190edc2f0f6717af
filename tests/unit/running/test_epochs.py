"""The steps of `training.epochs`: as many as the sequences of the training text fill."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.configs import tiny
from support.conversation_pairs import VOCABULARY, write_conversations

from efficientbench.basics.errors import ConfigError
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.manifest import Corpus, load_corpus, manifest_path
from efficientbench.data_tools.tokens.splitting import SPLITS, split_documents
from efficientbench.planning.plan import make_plan
from efficientbench.planning.text import text_budget
from efficientbench.running.run import counted, epoch_steps
from efficientbench.training.data.packing import WAITING

SEQ_LEN, BATCH, MEMORY_BYTES = 48, 8, 1 << 30


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return load_corpus(manifest_path(write_conversations(tmp_path_factory.mktemp("pair"), 400)))


def config_of(corpus: Corpus, *overrides: str) -> RunConfig:
    shape = (f"training.seq_len={SEQ_LEN}", f"training.global_batch_size={BATCH}", f"model.vocab_size={VOCABULARY}")
    data = (f"data.path={corpus.prefix}", f"data.cache={corpus.prefix.parent}", "data.split=[9,1,0]")
    return tiny("gqa_1.5B", *shape, *data, *overrides)


def training_lengths(corpus: Corpus) -> np.ndarray:
    split = split_documents([corpus.prefix], (9, 1, 0), VOCABULARY, corpus.prefix.parent / SPLITS)[0]
    return IndexedDocuments(corpus.prefix).lengths()[split.training]


def test_an_epoch_of_text_counts_its_tokens(corpus: Corpus) -> None:
    tokens = int(training_lengths(corpus).sum())
    for epochs in (1, 3):
        found = epoch_steps(config_of(corpus, f"training.epochs={epochs}"), [corpus])
        assert found == math.ceil(((tokens * epochs - 1) // SEQ_LEN) / BATCH)


def sequences_by_hand(lengths: list[int]) -> int:
    """Put each conversation, the longest first, into the first sequence with room: best fit where all of them wait."""
    rests: list[int] = []
    for length in sorted(lengths, reverse=True):
        place = next((place for place, rest in enumerate(rests) if rest >= length), len(rests))
        rests += [SEQ_LEN + 1] * (place == len(rests))
        rests[place] -= length
    return len(rests)


def test_packed_sequences_match_hand_counts() -> None:
    assert sequences_by_hand([10, 19, 24, 25, 30, 39, 49]) == 4
    assert sequences_by_hand([25, 25, 24, 24, 1]) == 3


def test_an_epoch_of_conversations_counts_packed_sequences(corpus: Corpus) -> None:
    from efficientbench.training.data.conversations import Conversations, PackedConversations

    split = split_documents([corpus.prefix], (9, 1, 0), VOCABULARY, corpus.prefix.parent / SPLITS)[0]
    lengths = training_lengths(corpus)
    fitting = split.training[lengths <= SEQ_LEN + 1]
    assert 0 < len(fitting) < len(lengths) <= WAITING
    sequences = sequences_by_hand(lengths[lengths <= SEQ_LEN + 1].tolist())
    packed = PackedConversations(Conversations(corpus.prefix, SEQ_LEN), split.training, 2 * sequences, 1234, 0)._rows
    assert len(packed) == 2 * sequences
    for epoch in (packed[:sequences], packed[sequences:]):
        assert sorted(number for row in epoch for number in row) == sorted(fitting.tolist())
    for epochs in (1, 2, 3):
        config = config_of(corpus, "training.objective=sft", f"training.epochs={epochs}")
        assert epoch_steps(config, [corpus]) == math.ceil(epochs * sequences / BATCH)


def test_a_plan_has_no_steps_before_its_text_is_counted(corpus: Corpus) -> None:
    config = config_of(corpus, "training.objective=sft", "training.epochs=2", "training.steps=null")
    plan = make_plan(config, Layout.of(config, 1, oversubscribe=True), 0)
    assert (plan.length, plan.budget.counted) == ("2 epochs in steps", False)
    assert str(text_budget(plan, [corpus.tokens])) == "n/a tokens per parameter"
    known = counted(plan, [corpus], MEMORY_BYTES)
    assert (known.budget.steps, known.budget.counted) == (epoch_steps(config, [corpus]), True)
    assert counted(known, [corpus], MEMORY_BYTES) is known


def test_a_plan_initialised_from_another_run_is_not_speed_only(corpus: Corpus) -> None:
    for init, only in ((), True), (("init.run=base",), False):
        config = config_of(corpus, *init)
        plan = make_plan(config, Layout.of(config, 1, oversubscribe=True), 0)
        assert ("speed only" in str(text_budget(plan, None))) is only


def test_epochs_of_several_sources_or_of_unfitting_conversations_are_refused(corpus: Corpus) -> None:
    with pytest.raises(ConfigError, match="^training.epochs: the 2 sources of data.path have different numbers"):
        epoch_steps(config_of(corpus, "training.epochs=1"), [corpus, corpus])
    short = config_of(corpus, "training.objective=sft", "training.epochs=1", "training.seq_len=4")
    with pytest.raises(ConfigError, match="does not fill or fit one sequence of training.seq_len=4"):
        epoch_steps(short, [corpus])
