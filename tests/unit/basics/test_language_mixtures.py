"""What Chinese output leaves in English: what is typed, names and what others wrote, and never half a message."""

from __future__ import annotations

import ast
import functools
import re

import pytest
from support.repository import ROOT

from efficientbench.basics.foreign import parse_own_yaml
from efficientbench.basics.language import TABLES, in_chinese

HAN = re.compile("[\u4e00-\u9fff]")
PLACEHOLDER = re.compile(r"\{[*n]?\}")
SENTENCE = "what nobody has translated"
ENGLISH = re.compile("[a-z]{2,} [a-z]{2,} [a-z]{2,}")
"""Three words, one after the other, as no list of names has them."""


@functools.cache
def catalogue() -> dict[str, str]:
    """The Chinese of every key."""
    parts = (part for table in TABLES for part in parse_own_yaml(table.read_text(encoding="utf-8")).values())
    return {english: chinese for part in parts for english, chinese in part.items()}


KEYS = [key for key in catalogue() if PLACEHOLDER.search(key)]


def filled(key: str, number: int, content: str) -> str:
    """Return a message: the key with content in one of its placeholders, and a number in the others."""
    kinds = iter(range(key.count("{")))
    return PLACEHOLDER.sub(lambda _: content if next(kinds) == number else "7", key)


@pytest.mark.parametrize("key", [key for key in KEYS if re.search(r"--[a-z-]+ \{[*}]|are \{\}$", key)])
def test_what_is_typed_behind_an_option_stays_as_it_is(key: str) -> None:
    words = [word for word in catalogue() if re.fullmatch("[a-z]+", word)]
    assert {"tokens", "optimizer", "sequence"} <= set(words)
    typed = [found.start() for found in re.finditer(r"\{", key)]
    numbers = [number for number, start in enumerate(typed) if re.search(r"--[a-z-]+ $|are $", key[:start])]
    for content in (*words, ",".join(words), ", ".join(words), " or ".join(words)):
        for number in numbers:
            told = in_chinese(filled(key, number, content))
            assert content in told, told
            assert HAN.search(told), told


@pytest.mark.parametrize("key", KEYS)
def test_a_message_with_a_sentence_that_has_no_chinese_stays_english(key: str) -> None:
    for number, kind in enumerate(PLACEHOLDER.findall(key)):
        message = filled(key, number, SENTENCE)
        told = in_chinese(message)
        # What a user or another program wrote, {*}, is no sentence of ours.
        assert kind == "{*}" or told == message or SENTENCE not in told


def messages() -> list[str]:
    """The texts of the product that have values, with a number in the place of each."""
    found = [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "7.5" for part in node.values)
        for folder in ("efficientbench", "metrics", "data_tools", "launchers")
        for file in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.JoinedStr)
    ]
    return [text for text in dict.fromkeys(found) if " " in text]


def test_no_message_of_the_product_is_half_chinese() -> None:
    # A command or a name may be in the Chinese, too.
    known = " ".join(catalogue().values())
    told = {message: in_chinese(message) for message in messages()}
    assert len(told) > 1000
    assert len([each for each in told.values() if HAN.search(each)]) > 700
    halves = {
        message: chinese
        for message, chinese in told.items()
        if HAN.search(chinese) and any(words not in known for words in ENGLISH.findall(chinese))
    }
    assert halves == {}


@pytest.mark.parametrize(
    "message",
    [
        "Speed only, without a comparison of losses: base_d2: 0.00017 tokens per parameter are fewer than 1.",
        "no layout of ZeRO 2 or 3 fits 8 GB: more ranks, or shorter samples",
        "25 GB/s between nodes; no transfer has a latency; experts get equal shares",
        "error: WORLD_SIZE or NNODES is not set: the number of nodes",
        "no ±95%: a 95 % interval needs 30 measured steps; this run has 3",
        "no verdict; highest figure: short, 63,015",
        "the message is empty",
        f"{SENTENCE} 3 steps",
        f"2 nodes; {SENTENCE}",
        f"no FLOPs: {SENTENCE}",
    ],
)
def test_a_message_is_chinese_or_english_as_a_whole(message: str) -> None:
    told = in_chinese(message)
    assert told == message or not re.search("[a-z]{2,} [a-z]{2,}", told), told


@pytest.mark.parametrize(
    ("message", "chinese"),
    [
        (
            "Speed only: gqa_0.5B: 0.015 tokens per parameter are fewer than 1.",
            "仅速度：gqa_0.5B：每参数 0.015 个 token 少于 1。",
        ),
        (
            "Speed only, without a comparison of losses: a: 0.01 tokens per parameter are fewer than 1; "
            "b: 0.02 tokens per parameter are fewer than 1.",
            "仅速度，不比较损失：a：每参数 0.01 个 token 少于 1；b：每参数 0.02 个 token 少于 1。",
        ),
        (
            "A: Another process used a device of gqa_0.5B (smoke) (speed only) meanwhile.",
            "A 侧：其间另一个进程使用了 gqa_0.5B (smoke) (speed only) 的设备。",
        ),
        (
            "no ±95%: a 95 % interval needs 30 measured steps; this run has 3",
            "没有 ±95%：95 % 区间需要 30 个测量步；此运行有 3 个",
        ),
        ("no verdict; highest figure: short, 63,015", "不下结论；最高值：short, 63,015"),
        ("gqa_0.5B: started, attempt 2", "gqa_0.5B：已开始，第 2 次尝试"),
        ("error: 3 nodes", "错误：3 个节点"),
    ],
)
def test_a_message_of_several_parts_is_told_in_chinese(message: str, chinese: str) -> None:
    assert in_chinese(message) == chinese


def test_what_another_program_wrote_stays_in_a_chinese_message() -> None:
    told = in_chinese("error: x.yaml cannot be read: No such file or directory")
    assert told == "错误：x.yaml 无法读取：No such file or directory"
