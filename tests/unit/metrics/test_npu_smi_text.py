"""What npu-smi prints, over generations of chips: the published outputs are read, garbage is not, nothing raises."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.repository import ROOT

from efficientbench.metrics.sensors.ascend.chips import Chip
from efficientbench.metrics.sensors.ascend.npu_smi_text import (
    AI_CORE,
    MEMORY,
    POWER,
    WatchParser,
    parse_mapping,
    parse_memory,
    parse_table,
    parse_versions,
)

OUTPUTS = yaml.safe_load((ROOT / "tests" / "support" / "npu_smi_outputs.yaml").read_text(encoding="utf-8"))
TEXTS = [entry["text"] for entries in OUTPUTS.values() for entry in entries]
MB = 1 << 20


def cases(kind: str) -> Any:
    return pytest.mark.parametrize("entry", OUTPUTS[kind], ids=[entry["what"] for entry in OUTPUTS[kind]])


def test_every_output_is_cited() -> None:
    entries = [entry for kind in OUTPUTS.values() for entry in kind]
    assert len(entries) >= 25
    assert all(entry["source"] and entry["kind"] in ("published", "format") for entry in entries)


@cases("tables")
def test_the_table(entry: dict[str, Any]) -> None:
    assert dict(parse_versions(entry["text"])) == entry["versions"]
    found = parse_table(entry["text"])
    assert [[s.card, s.name, s.health, s.used_mb, s.capacity_mb] for s in found] == entry["states"]


def test_a_name_never_spans_two_columns() -> None:
    rows = "| 0 9 | xxx | OK | 204.4 |\n| | | 0000:91:00.0 | 4439 / 86016 |\n"
    assert parse_table(rows) == []
    assert [state.name for state in parse_table(rows.replace("0 9", "0"))] == ["xxx"]


@cases("mappings")
def test_the_mapping(entry: dict[str, Any]) -> None:
    assert parse_mapping(entry["text"]) == [Chip(*chip) for chip in entry["chips"]]


@cases("memories")
def test_the_memory(entry: dict[str, Any]) -> None:
    found = parse_memory(entry["text"])
    assert found.capacity_bytes == (entry["capacity_mb"] and entry["capacity_mb"] * MB)
    assert found.watch_tells_it == entry["watch_tells_it"]


def read_all(text: str) -> list[tuple[tuple[int, int], dict[str, float]]]:
    parser = WatchParser()
    return [found for line in text.splitlines() if (found := parser.read(line)) is not None]


@cases("watches")
def test_the_watch(entry: dict[str, Any]) -> None:
    found = [
        [*place, *(told.get(title) for title in (POWER, AI_CORE, MEMORY))] for place, told in read_all(entry["text"])
    ]
    assert found == entry["readings"]


def check(text: str) -> None:
    """Whatever was read stands in the text, and could be a reading."""
    for chip in parse_mapping(text):
        assert chip.card >= 0
        assert chip.chip >= 0
        assert chip.logic_id >= 0
        assert str(chip.card) in text or f"0{chip.card}" in text
    memory = parse_memory(text)
    assert memory.capacity_bytes is None or memory.capacity_bytes > 0
    for state in parse_table(text):
        assert state.card >= 0
        assert state.name in text
        assert state.used_mb is None or state.used_mb >= 0
    for (card, chip), told in read_all(text):
        assert card >= 0
        assert chip >= 0
        assert all(value >= 0 and math.isfinite(value) for value in told.values())
        assert all(title in text for title in told)
    list(parse_versions(text))


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_no_text_is_too_strange(text: str) -> None:
    check(text)
    check(f"NpuID(Idx)  ChipId(Idx) Pwr(W)\n{text}")
    check(f"NPU ID  Chip ID  Chip Logic ID  Chip Name\n{text}")


@given(st.sampled_from(TEXTS), st.integers(0, 2**32), st.integers(1, 6))
@settings(max_examples=300, deadline=None)
def test_damaged_output_gives_nothing_that_is_not_there(text: str, seed: int, damages: int) -> None:
    draw = random.Random(seed)
    for _ in range(damages):
        at, length = draw.randrange(len(text) + 1), draw.randrange(40)
        other = draw.choice(TEXTS)
        start = draw.randrange(len(other) + 1)
        text = (
            text[:at]
            + draw.choice(["", "\x00", "٣", "\ufffd", "|", "1e9", other[start : start + 30]])
            + text[at + length :]
        )
    check(text)
