"""Tokenizers: trained ones, ones that transformers made, and what makes one unusable."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.repository import ROOT
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer, load_tokenizer, train_tokenizer
from efficientbench.data_tools.tokenizer.tokenizer_files import folder_checksum

QWEN2 = ROOT.parent / "shared" / "data" / "qwen2_tokenizer"
TEXTS = [
    "Names of special tokens are <|endoftext|> ordinary <|im_start|>text<|im_end|>.",
    "<|endoftext|>",
    "e\u0301 and \u00e9, \u212b and \u00c5, \ufb01 and fi",
    "1234567 tabs\t\tand\r\nline ends \n\n  ",
    "中文、日本語、한국어 и русский 🦙🏽‍💻 \u200b\x00",
]


def pieces(*choices: str) -> st.SearchStrategy[str]:
    """Texts put together from these."""
    return st.lists(st.sampled_from(choices)).map("".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "bpe"
    sources = (source.read_text(encoding="utf-8") for source in sorted((ROOT / "data_tools").glob("*.py")))
    train_tokenizer(sources, 700, path)
    return path


@pytest.fixture(scope="module")
def trained(folder: Path) -> TextTokenizer:
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def qwen2() -> TextTokenizer:
    if not QWEN2.is_dir():
        pytest.skip(f"{QWEN2} is absent")
    return load_tokenizer(QWEN2)


@pytest.fixture(scope="module")
def trained_lengths(trained: TextTokenizer) -> np.ndarray:
    return trained.token_bytes()


@pytest.fixture(scope="module")
def qwen2_lengths(qwen2: TextTokenizer) -> np.ndarray:
    return qwen2.token_bytes()


@settings(max_examples=100)
@given(text=st.text() | pieces("<|endoftext|>", *" \n\r\t'sS12é"))
def test_any_text_round_trips_and_its_bytes_are_counted(
    trained: TextTokenizer, trained_lengths: np.ndarray, text: str
) -> None:
    [ids] = trained.encode_batch([text])
    assert trained.backend.decode(ids, skip_special_tokens=False) == text
    assert trained.eod_id not in ids
    assert trained_lengths[ids].sum() == len(text.encode())


@settings(max_examples=100)
@given(text=st.text() | pieces("<|endoftext|>", "<|im_end|>", *"e\u0301\u212b\n 中"))
def test_qwen2_counts_the_bytes_of_normalized_text(qwen2: TextTokenizer, qwen2_lengths: np.ndarray, text: str) -> None:
    [ids] = qwen2.encode_batch([text])
    assert qwen2_lengths[ids].sum() == len(unicodedata.normalize("NFC", text).encode())
    assert max(ids, default=0) < 151_643


def test_qwen2_gives_the_ids_of_transformers(qwen2: TextTokenizer) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(str(QWEN2), local_files_only=True)
    sample = QWEN2.parent / "c4" / "c4_demo.jsonl"
    texts = TEXTS + [json.loads(line)["text"] for line in sample.read_text(encoding="utf-8").splitlines()]
    expected = [reference.encode(text, add_special_tokens=False, split_special_tokens=True) for text in texts]
    assert qwen2.encode_batch(texts) == expected
    assert (qwen2.vocab_size, qwen2.eod_id) == (151_646, 151_643)
    # Without the option, transformers takes the names for the tokens themselves: the texts do test the difference.
    assert qwen2.eod_id in reference.encode(TEXTS[0], add_special_tokens=False)


def test_a_saved_copy_is_equal_and_loads_without_transformers(qwen2: TextTokenizer, tmp_path: Path) -> None:
    qwen2.save(tmp_path / "copy")
    code = (
        "import sys; from efficientbench.data_tools.tokenizer.tokenizer import *; "
        f"copy = load_tokenizer({str(tmp_path / 'copy')!r}); "
        "print(copy.fingerprint, copy.eod_id, copy.vocab_size, 'transformers' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [qwen2.fingerprint, "151643", "151646", "False", "False"]


def test_transformers_loads_a_trained_tokenizer(folder: Path, trained: TextTokenizer) -> None:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    for text in TEXTS:
        assert loaded.encode(text, split_special_tokens=True) == trained.encode_batch([text])[0]
        assert loaded.decode(trained.encode_batch([text])[0]) == text
    assert loaded.eos_token_id == trained.eod_id
    assert len(loaded) == trained.vocab_size == 700


def test_tokenizer_training_is_reproducible_and_bounded_by_its_text(
    folder: Path, trained: TextTokenizer, tmp_path: Path
) -> None:
    sources = [source.read_text(encoding="utf-8") for source in sorted((ROOT / "data_tools").glob("*.py"))]
    train_tokenizer(sources, 700, tmp_path / "again")
    assert load_tokenizer(tmp_path / "again").fingerprint == trained.fingerprint
    assert folder_checksum(tmp_path / "again") == folder_checksum(folder)
    train_tokenizer(["aa aa"], 700, tmp_path / "small")
    assert 257 <= load_tokenizer(tmp_path / "small").vocab_size < 270
    train_tokenizer(["aa aa"], 257, tmp_path / "bytes")
    assert load_tokenizer(tmp_path / "bytes").vocab_size == 257
    with pytest.raises(DataError, match="at least 257 tokens .* not 256"):
        train_tokenizer(["aa aa"], 256, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_tokens_stay_within_the_parts_of_the_split(tmp_path: Path) -> None:
    """However often a text repeats itself, merges do not cross from a word into the next, nor beyond three digits."""
    train_tokenizer(["good day's 1234567, said they.\n\n"] * 100, 700, tmp_path / "split")
    split = load_tokenizer(tmp_path / "split")
    [ids] = split.encode_batch(["good day's 1234567, said they.\n\n"])
    assert [split.backend.decode([i]) for i in ids] == [
        *("good", " day", "'s", " ", "123", "456", "7", ",", " said", " they", ".\n\n"),
    ]


def test_a_truncating_tokenizer_does_not_truncate_documents(trained: TextTokenizer, tmp_path: Path) -> None:
    limited = Tokenizer.from_str(trained.backend.to_str())
    limited.enable_truncation(4)
    limited.enable_padding(length=8)
    limited.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode_batch(["a b c d e f g h i j"]) == trained.encode_batch(
        ["a b c d e f g h i j"]
    )


def word_tokenizer(folder: Path, eos: object) -> Path:
    """A tokenizer of whole words, as many fields of natural language processing use them."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "</s>": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    return folder


@pytest.mark.parametrize("eos", ["</s>", {"content": "</s>", "special": True}])
def test_other_kinds_of_tokenizer_use_their_own_end_of_document_token(tmp_path: Path, eos: object) -> None:
    words = load_tokenizer(word_tokenizer(tmp_path, eos))
    assert words.encode_batch(["A b zebra"]) == [[1, 2, 0]]
    assert (words.eod_id, words.token_bytes()) == (3, None)


def test_special_tokens_count_no_bytes_and_added_words_count_theirs(trained: TextTokenizer, tmp_path: Path) -> None:
    extended = Tokenizer.from_str(trained.backend.to_str())
    extended.add_special_tokens(["<special>"])
    extended.add_tokens(["häufig"])
    extended.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert (loaded.vocab_size, loaded.fingerprint == trained.fingerprint) == (702, False)
    lengths = loaded.token_bytes()
    assert lengths.dtype == np.int32
    assert lengths[[loaded.eod_id, 700, 701]].tolist() == [0, 0, 7]


@pytest.mark.parametrize(
    "name", ["./nope", "/nope/x", "~/nope/x", "~nobody-here/x", "a/b/c", "nope/", "data_tools/nope", "../nope"]
)
def test_a_missing_folder_is_not_looked_up_on_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(DataError, match=f"tokenizer folder {name} does not exist"):
        load_tokenizer(name)


def test_unusable_folders_are_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer\.json is a file: give its folder"):
        load_tokenizer(folder / "tokenizer.json")
    with pytest.raises(DataError, match=f"{tmp_path} holds no tokenizer: none of tokenizer.json"):
        load_tokenizer(tmp_path)
    word_tokenizer(tmp_path, None)
    for name, content, message in (
        (None, None, f"{tmp_path} has no token that could end a document"),
        ("tokenizer_config.json", '{"eos_token": 5}', "eos_token must be a text, it is: 5"),
        ("tokenizer_config.json", "[", r"tokenizer_config\.json is not a JSON object"),
        ("tokenizer.json", '{"version": "1.0"', r"tokenizer\.json cannot be read as a tokenizer"),
    ):
        if name is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=message):
            load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=f"transformers cannot load a tokenizer from {tmp_path}"):
        load_tokenizer(tmp_path)


def test_the_name_of_the_end_token_inside_a_document_stays_text(folder: Path, tmp_path: Path) -> None:
    spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    for added in spec["added_tokens"]:
        added["special"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    loaded = load_tokenizer(tmp_path)
    assert loaded.eod_id == load_tokenizer(folder).eod_id
    assert loaded.eod_id not in loaded.encode_batch(["one<|endoftext|>two"])[0]
