"""tiktoken's engine against `tokenizers` itself, which decides what a tokenizer's ids are."""

from __future__ import annotations

import json
import logging
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from efficientbench.data_tools.engine import HARD_STRINGS, Engine, _is_nfc, choose_engine
from efficientbench.data_tools.tokenizer import load_tokenizer, train_tokenizer

TEXT = [
    " ".join(HARD_STRINGS),
    "some text and more of it, with café and naïve words " * 5,
    "<tool_call> and <|endoftext|>",
]
# Texts around what could be told apart: special names, combining characters, case, digits, white space.
PIECES = [
    *(
        "<|endoftext|>",
        "<tool_call>",
        "<tool",
        "e\u0301",
        "\u0301",
        "\u0338",
        "\u212b",
        "\u1100\u1161",
        " ",
        "\n",
        "\t",
    ),
    *("'s", "'LL", "12345", "word", " word", "WORD", "\u4f60", "\U0001f468\u200d", "\u00a0", "\x00", "."),
]
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=12).map("".join)


def byte_level(folder: Path, change: Callable[[dict[str, Any]], None] = lambda spec: None) -> Path:
    """A trained tokenizer, with its `tokenizer.json` changed."""
    train_tokenizer(TEXT, 400, folder)
    path = folder / "tokenizer.json"
    spec = json.loads(path.read_text())
    change(spec)
    path.write_text(json.dumps(spec))
    return folder


def normalized(spec: dict[str, Any]) -> None:
    spec["normalizer"] = {"type": "NFC"}


def lowercased(spec: dict[str, Any]) -> None:
    spec["normalizer"] = {"type": "Lowercase"}


def with_matched_token(spec: dict[str, Any]) -> None:
    """As Qwen2.5 has them: found in text, though not special. NFC changes `>` with U+0338 behind it."""
    normalized(spec)
    token = dict(spec["added_tokens"][0], id=500, content="<tool_call>", special=False)
    spec["added_tokens"].append(token)


def gpt2_split(spec: dict[str, Any]) -> None:
    spec["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


KINDS = [normalized, lowercased, with_matched_token, gpt2_split]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Tokenizer]:
    folder = byte_level(tmp_path_factory.mktemp("tokenizer") / "bpe", request.param)
    tokenizer = load_tokenizer(folder)
    return choose_engine(tokenizer, folder, []), tokenizer.backend


@settings(max_examples=300, deadline=None)
@given(text=texts)
def test_tiktoken_gives_the_tokenizers_ids(engines: tuple[Engine, Tokenizer], text: str) -> None:
    engine, backend = engines
    assert engine.name.startswith("tiktoken "), engine.reason
    expected = backend.encode(text, add_special_tokens=False).ids
    assert engine.encode(text).tolist() == expected
    assert backend.token_to_id("<|endoftext|>") not in expected
    assert engine.count_special(text)["<|endoftext|>"] == text.count("<|endoftext|>")


def test_the_real_qwen2_tokenizer(shared_data: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(shared_data / "qwen2_tokenizer")
    lines = [json.loads(line)["text"] for line in (shared_data / "c4" / "c4_demo.jsonl").open()]
    engine = choose_engine(tokenizer, tmp_path, lines[:20])
    assert engine.name.startswith("tiktoken "), engine.reason
    decomposed = [unicodedata.normalize("NFD", text) for text in (*lines[:100], *HARD_STRINGS)]
    for text in (*lines, *decomposed, *HARD_STRINGS, "<|endoftext|>", "<|im_start|>x"):
        assert engine.encode(text).tolist() == tokenizer.encode_batch([text])[0]


def test_python_and_tokenizers_agree_on_what_is_normalized() -> None:
    """Whatever is taken for NFC without being normalized is what normalizing would leave as it is."""
    nfc = normalizers.NFC()
    taken = 0
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        for text in (f"a{chr(code)}", f"{chr(code)}\u0301", f"{chr(code)}\u0323\u0301"):
            if _is_nfc(text):
                taken += 1
                assert nfc.normalize_str(text) == text, ascii(text)
    assert taken > 50_000


def not_byte_level(folder: Path) -> None:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<|endoftext|>", "<unk>"]
    tokenizer.train_from_iterator(
        TEXT, trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>")
    )
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))


def other_order(spec: dict[str, Any]) -> None:
    spec["model"]["merges"].reverse()


def letters_only(spec: dict[str, Any]) -> None:
    """`tokenizers` keeps what lies between matches, tiktoken drops it."""
    spec["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\p{L}+"


def unknown_syntax(spec: dict[str, Any]) -> None:
    spec["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\X"


def two_splits(spec: dict[str, Any]) -> None:
    parts = spec["pre_tokenizer"]["pretokenizers"]
    parts.insert(0, {"type": "Digits", "individual_digits": True})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (not_byte_level, "its model is not plain byte-pair encoding"),
        (other_order, "its merges are not in the order of their tokens' ids"),
        (letters_only, "the two give other ids for 'Hello  world"),
        (unknown_syntax, "Parsing error"),
        (two_splits, "text is not split by one regular expression and cut into bytes"),
    ],
)
def test_where_tiktoken_cannot_be_used_that_is_said(
    tmp_path: Path, make: Callable[[Any], None], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "tokenizer"
    make(folder) if make is not_byte_level else byte_level(folder, make)
    tokenizer = load_tokenizer(folder)
    with caplog.at_level(logging.WARNING):
        engine = choose_engine(tokenizer, folder, TEXT)
    assert f"slower than tiktoken: {reason}" in caplog.text
    assert engine.name.startswith("tokenizers ")
    for text in TEXT:
        assert engine.encode(text).tolist() == tokenizer.encode_batch([text])[0]
    assert engine.count_special(TEXT[2]) == {"<|endoftext|>": 1}


def test_a_difference_on_the_inputs_own_text_is_found(tmp_path: Path) -> None:
    """A character that only the input has, and only one of two regular expressions takes."""

    def split_at_rune(spec: dict[str, Any]) -> None:
        split = spec["pre_tokenizer"]["pretokenizers"][0]
        split["pattern"]["Regex"] = f"(?!\u16a0)(?:{split['pattern']['Regex']})"

    folder = byte_level(tmp_path / "tokenizer", split_at_rune)
    assert choose_engine(load_tokenizer(folder), folder, ["plain"]).reason is None
    assert "the two give other ids for '\u16a0 is a rune'" in str(
        choose_engine(load_tokenizer(folder), folder, ["\u16a0 is a rune"]).reason
    )


def test_a_text_on_which_tiktoken_gives_up_is_encoded_all_the_same(tmp_path: Path) -> None:
    """Its regular expressions have a limit of steps, and panic beyond it."""

    def costly(spec: dict[str, Any]) -> None:
        split = spec["pre_tokenizer"]["pretokenizers"][0]
        split["pattern"]["Regex"] = r"(?:(?=q)q+)+y|" + split["pattern"]["Regex"]

    folder = byte_level(tmp_path / "tokenizer", costly)
    tokenizer = load_tokenizer(folder)
    engine = choose_engine(tokenizer, folder, [])
    assert engine.reason is None
    text = "q" * 20
    with pytest.raises(BaseException, match="BacktrackLimit"):
        engine.encoding.encode_ordinary(text)
    assert engine.encode(text).tolist() == tokenizer.encode_batch([text])[0]
