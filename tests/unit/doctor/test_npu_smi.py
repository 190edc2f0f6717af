"""What `npu-smi info` prints, over generations of chips: published tables are read, garbage is not, nothing raises."""

from __future__ import annotations

import random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.repository import ROOT

from efficientbench.doctor.ascend import parse_table, parse_versions

TABLES = yaml.safe_load((ROOT / "tests" / "replicas" / "npu_smi_outputs.yaml").read_text(encoding="utf-8"))["tables"]
TEXTS = [entry["text"] for entry in TABLES]


@pytest.mark.parametrize("entry", TABLES, ids=[entry["what"] for entry in TABLES])
def test_the_table(entry: dict[str, Any]) -> None:
    assert parse_versions(entry["text"]) == entry["versions"]
    assert [[state.card, state.name, state.health] for state in parse_table(entry["text"])] == entry["states"]


def test_a_name_never_spans_two_columns() -> None:
    rows = "| 0 9 | xxx | OK | 204.4 |\n| | | 0000:91:00.0 | 4439 / 86016 |\n"
    assert parse_table(rows) == []
    assert [state.name for state in parse_table(rows.replace("0 9", "0"))] == ["xxx"]


@given(st.text() | st.sampled_from(TEXTS), st.integers(0, 2**32), st.integers(1, 6))
@settings(max_examples=400)
def test_damaged_output_gives_nothing_that_is_not_there(text: str, seed: int, damages: int) -> None:
    draw = random.Random(seed)
    for _ in range(damages):
        at, length = draw.randrange(len(text) + 1), draw.randrange(40)
        other = draw.choice(TEXTS)
        start = draw.randrange(len(other) + 1)
        damage = draw.choice(["", "\x00", "٣", "\ufffd", "|", "1e9", other[start : start + 30]])
        text = text[:at] + damage + text[at + length :]
    for state in parse_table(text):
        assert str(state.card) in text
        assert state.name in text
        assert state.health in text
    parse_versions(text)
