"""Conversations as samples: whole, packed as best fit packs, with the mask's targets and nothing else."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.conversation_pairs import write_conversations

from efficientbench.training.data import packing
from efficientbench.training.data.conversations import Conversations, PackedConversations, choose_conversations
from efficientbench.training.data.packing import best_fit, packed_epoch
from efficientbench.training.data.validation import ValidationText

COUNT, SEQ_LEN, PAD = 60, 47, 0


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_conversations(tmp_path_factory.mktemp("pair"), COUNT)


@pytest.fixture
def found(prefix: Path) -> Conversations:
    return Conversations(prefix, SEQ_LEN)


def packed(found: Conversations, samples: int, seed: int = 5) -> PackedConversations:
    return PackedConversations(found, np.arange(COUNT), samples, seed, PAD)


def plainly_packed(lengths: list[int], capacity: int) -> list[list[int]]:
    """Best fit over everything at once, without an order that is kept."""
    left = list(range(len(lengths)))
    rows = []
    while left:
        row: list[int] = []
        while fits := [n for n in left if lengths[n] + sum(lengths[m] for m in row) <= capacity]:
            row.append(max(fits, key=lambda n: (lengths[n], n)))
            left.remove(row[-1])
        rows.append(row)
    return rows


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(30, 70))
def test_packed_sequences_match_plain_best_fit(lengths: list[int], capacity: int) -> None:
    rows = list(best_fit(((length, number) for number, length in enumerate(lengths)), capacity))
    assert rows == plainly_packed(lengths, capacity)


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(1, 7))
def test_each_conversation_occurs_once_with_a_short_waiting_list(lengths: list[int], waiting: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "WAITING", waiting)
        rows = list(best_fit(((length, number) for number, length in enumerate(lengths)), 30))
    assert sorted(itertools.chain(*rows)) == list(range(len(lengths)))
    assert all(sum(lengths[number] for number in row) <= 30 for row in rows)


def test_each_epoch_has_every_conversation_once_in_a_new_order(found: Conversations) -> None:
    numbers = found.fitting(np.arange(COUNT)).tolist()
    epochs = [packed_epoch(numbers, found.lengths, SEQ_LEN + 1, 5, epoch) for epoch in range(3)]
    assert [sorted(itertools.chain(*rows)) for rows in epochs] == [numbers] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    assert packed_epoch(numbers, found.lengths, SEQ_LEN + 1, 6, 0) != epochs[0]


def test_samples_hold_complete_conversations_and_the_targets_of_the_mask(found: Conversations) -> None:
    samples, per_epoch = packed(found, 1), 0
    per_epoch = len(samples._rows)
    samples = packed(found, 2 * per_epoch)
    seen = []
    for number in range(per_epoch):
        sample = samples[number]
        tokens = torch.cat([sample["tokens"], sample["labels"][-1:]]).numpy()
        assert torch.equal(sample["tokens"][1:], sample["labels"][:-1])
        end, expected = 0, np.zeros(SEQ_LEN + 1)
        for each in samples._rows[number]:
            whole, mask = found.ids[each], found.mask[each]
            assert np.array_equal(tokens[end : end + len(whole)], whole)
            expected[end : end + len(whole)] = mask
            end += len(whole)
            seen.append(each)
        assert set(tokens[end:].tolist()) <= {PAD}
        assert np.array_equal(sample["loss_mask"].numpy(), expected[1:])
        assert samples.targets(number, number + 1) == int(sample["loss_mask"].sum()) > 0
    assert samples.targets(0, per_epoch) == sum(found.targets(number) for number in seen)
    assert sorted(seen) == found.fitting(np.arange(COUNT)).tolist()
    # What is too long is counted, and in no sample.
    assert samples.too_long == int((found.lengths > SEQ_LEN + 1).sum()) == COUNT - len(seen) > 0
    assert samples.tokens == sum(len(found.ids[number]) for number in seen)


def test_a_longer_training_begins_with_the_same_samples(found: Conversations) -> None:
    short, long = packed(found, 5), packed(found, 200)
    assert long._rows[: len(short._rows)] == short._rows
    assert len(long._rows) >= 200
    assert packed(found, 5, seed=6)._rows != short._rows


def test_validation_scores_only_the_targets_of_the_mask(found: Conversations) -> None:
    order = np.arange(COUNT)[::-1]
    ids, masks = choose_conversations(found, order, 100)
    text = ValidationText(ids, SEQ_LEN, masks)
    assert len(text) == len(ids)  # each in one sequence
    scored = [text[number]["labels"][text[number]["loss_mask"] == 1].tolist() for number in range(len(text))]
    chosen = found.fitting(order)[: len(ids)]
    assert scored == [found.ids[number][found.mask[number] == 1].tolist() for number in chosen]
    counts = [found.targets(number) for number in chosen]
    assert sum(counts[:-1]) < 100 <= sum(counts)
    everything = choose_conversations(found, order, 10**9)[0]
    assert len(everything) == len(found.fitting(order))
    assert text.fingerprint != ValidationText(ids, SEQ_LEN).fingerprint
