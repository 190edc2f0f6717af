"""The digests of a recheck, and the rank that it suspects."""

from __future__ import annotations

import pytest
import torch

from efficientbench.metrics.records.record_parts import Mismatch
from efficientbench.training import recheck
from efficientbench.training.recheck import BACKWARD, FORWARD, Difference, Place, digest, first_difference, suspects


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.bool])
def test_any_flipped_bit_changes_the_digest(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    # Three blocks, the last one shorter.
    monkeypatch.setattr(recheck, "BLOCK", 16)
    values = torch.randn(5, 8).to(dtype)
    before = digest(values)
    assert before == digest(values.clone())
    bits = values.view(torch.uint8).view(-1)
    for byte in range(len(bits)):
        for bit in range(8):
            bits[byte] ^= 1 << bit
            assert digest(values) != before, (byte, bit)
            bits[byte] ^= 1 << bit
    assert digest(values) == before


def test_swapped_values_and_signs_of_zero_and_nan_change_the_digest() -> None:
    one, other = torch.tensor([1.0, 2.0, 0.0]), torch.tensor([2.0, 1.0, 0.0])
    assert digest(one) != digest(other)
    assert digest(one) != digest(torch.tensor([1.0, 2.0, -0.0]))
    assert digest(torch.full((3,), torch.nan)) == digest(torch.full((3,), torch.nan))
    assert digest(torch.empty(0)) == 0


def place(*order: int) -> Place:
    return Place(order, f"place {order}")  # type: ignore[arg-type]


def test_the_first_difference_is_the_one_computed_first() -> None:
    # Notes are in the order in which a rank took them: with interleaved stages not that of the model.
    noted = [place(FORWARD, 2, 0), place(FORWARD, 0, 1), place(BACKWARD, -2, 2)]
    first = [(each, 7) for each in noted]
    assert first_difference(first, first) is None
    second = [(each, 8) for each in noted]
    assert first_difference(first, second) == noted[1]
    assert first_difference(first, [first[0], first[1], second[2]]) == noted[2]


def difference(replica: int, *order: int) -> Difference:
    return Difference(place(*order), replica, "host, cpu 0")


@pytest.mark.parametrize(
    ("found", "ranks"),
    [
        ([None, None], []),
        # The first stage's forward pass, and what the second made of it.
        ([difference(0, FORWARD, 0, 5), difference(0, FORWARD, 1, 0)], [0]),
        # The last stage's backward pass, and what the first made of it.
        ([difference(0, BACKWARD, 0, 9), difference(0, BACKWARD, -1, 3)], [1]),
        # A sum over both ranks: either may have computed it.
        ([difference(0, FORWARD, 0, 5), difference(0, FORWARD, 0, 5)], [0, 1]),
        # Replicas have nothing of each other.
        ([difference(0, BACKWARD, 0, 9), difference(1, FORWARD, 0, 0), None], [0, 1]),
    ],
)
def test_the_rank_with_the_first_difference_of_its_replica_is_suspected(
    found: list[Difference | None], ranks: list[int]
) -> None:
    suspected = suspects(4, found)
    assert [each.rank for each in suspected] == ranks
    for each in suspected:
        culprit = found[each.rank]
        assert culprit is not None
        assert each == Mismatch(4, each.rank, "host, cpu 0", culprit.place.what)
