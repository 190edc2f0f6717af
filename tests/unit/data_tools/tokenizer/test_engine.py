"""tiktoken's engine against `tokenizers` itself, which decides what a tokenizer's ids are."""

from __future__ import annotations

import json
import logging
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from efficientbench.data_tools.tokenizer.engine import HARD_STRINGS, Engine, _is_nfc, choose_engine
from efficientbench.data_tools.tokenizer.tokenizer import SPLIT_PATTERN, load_tokenizer, train_tokenizer

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


def byte_level(folder: Path, **changes: Any) -> Path:
    """A trained tokenizer, with keys of its `tokenizer.json` changed."""
    train_tokenizer(TEXT, 400, folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


def split_by(pattern: str, *before: dict[str, Any]) -> dict[str, Any]:
    """Cuts text by a regular expression, after what comes before, and then into bytes."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [*before, split, {**BYTES, "use_regex": False}]}


DIGITS = {"type": "Digits", "individual_digits": True}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
TOKEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
KINDS = {
    "normalized": {"normalizer": {"type": "NFC"}},
    "lowercased": {"normalizer": {"type": "Lowercase"}},
    # As in Qwen2.5: found in text, though not special. NFC changes `>` with U+0338 behind it.
    "with a matched token": {
        "normalizer": {"type": "NFC"},
        "added_tokens": [
            {**TOKEN, "id": 0, "content": "<|endoftext|>", "special": True},
            {**TOKEN, "id": 500, "content": "<tool_call>", "special": False},
        ],
    },
    "split as by GPT-2": {"pre_tokenizer": BYTES},
}


@pytest.fixture(scope="module", params=KINDS)
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Tokenizer]:
    folder = byte_level(tmp_path_factory.mktemp("tokenizer") / "bpe", **KINDS[request.param])
    tokenizer = load_tokenizer(folder)
    return choose_engine(tokenizer, folder, []), tokenizer.backend


@settings(max_examples=100)
@given(text=texts)
def test_tiktoken_gives_the_ids_of_tokenizers(engines: tuple[Engine, Tokenizer], text: str) -> None:
    engine, backend = engines
    assert engine.name.startswith("tiktoken "), engine.reason
    expected = backend.encode(text, add_special_tokens=False).ids
    assert engine.encode(text).tolist() == expected
    assert backend.token_to_id("<|endoftext|>") not in expected
    assert engine.count_special(text)["<|endoftext|>"] == text.count("<|endoftext|>")


def test_tiktoken_gives_the_ids_of_the_real_qwen2_tokenizer(shared_data: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(shared_data / "qwen2_tokenizer")
    lines = [json.loads(line)["text"] for line in (shared_data / "c4" / "c4_demo.jsonl").open()]
    engine = choose_engine(tokenizer, tmp_path, lines[:20])
    assert engine.name.startswith("tiktoken "), engine.reason
    decomposed = [unicodedata.normalize("NFD", text) for text in (*lines[:100], *HARD_STRINGS)]
    for text in (*lines, *decomposed, *HARD_STRINGS, "<|endoftext|>", "<|im_start|>x"):
        assert engine.encode(text).tolist() == tokenizer.encode_batch([text])[0]


def test_python_and_tokenizers_agree_on_what_is_normalized() -> None:
    """Text that is taken for NFC without being normalized is text that normalizing leaves unchanged."""
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


def other_order(folder: Path) -> None:
    model = json.loads((byte_level(folder) / "tokenizer.json").read_text())["model"]
    byte_level(folder, model={**model, "merges": model["merges"][::-1]})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (not_byte_level, "its model is not plain byte-pair encoding"),
        (other_order, "its merges are not in the order of their tokens' ids"),
        # `tokenizers` keeps what lies between matches, tiktoken drops it.
        (partial(byte_level, pre_tokenizer=split_by(r"\p{L}+")), "the two give other ids for 'Hello  world"),
        (partial(byte_level, pre_tokenizer=split_by(r"\X")), "Parsing error"),
        (
            partial(byte_level, pre_tokenizer=split_by(SPLIT_PATTERN, DIGITS)),
            "text is not split by one regular expression and cut into bytes",
        ),
    ],
)
def test_a_tokenizer_that_tiktoken_cannot_replace_is_reported(
    tmp_path: Path, make: Callable[[Any], None], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "tokenizer"
    make(folder)
    tokenizer = load_tokenizer(folder)
    with caplog.at_level(logging.WARNING):
        engine = choose_engine(tokenizer, folder, TEXT)
    assert f"slower than tiktoken: {reason}" in caplog.text
    assert engine.name.startswith("tokenizers ")
    for text in TEXT:
        assert engine.encode(text).tolist() == tokenizer.encode_batch([text])[0]
    assert engine.count_special(TEXT[2]) == {"<|endoftext|>": 1}


def test_a_difference_on_text_of_the_input_is_detected(tmp_path: Path) -> None:
    """Only the input has a character on which the two regular expressions differ."""
    folder = byte_level(tmp_path / "tokenizer", pre_tokenizer=split_by(f"(?!\u16a0)(?:{SPLIT_PATTERN})"))
    assert choose_engine(load_tokenizer(folder), folder, ["plain"]).reason is None
    assert "the two give other ids for '\u16a0 is a rune'" in str(
        choose_engine(load_tokenizer(folder), folder, ["\u16a0 is a rune"]).reason
    )


def test_a_text_on_which_tiktoken_panics_is_encoded_by_tokenizers(tmp_path: Path) -> None:
    """Its regular expressions have a limit of steps, and panic beyond it."""
    folder = byte_level(tmp_path / "tokenizer", pre_tokenizer=split_by(r"(?:(?=q)q+)+y|" + SPLIT_PATTERN))
    tokenizer = load_tokenizer(folder)
    engine = choose_engine(tokenizer, folder, [])
    assert engine.reason is None
    text = "q" * 20
    with pytest.raises(BaseException, match="BacktrackLimit"):
        engine.encoding.encode_ordinary(text)
    assert engine.encode(text).tolist() == tokenizer.encode_batch([text])[0]
