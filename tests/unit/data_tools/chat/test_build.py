"""Mixtures to pairs of ids and mask: their content and order, their record, and what is found of damage."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.data_tools_command import run
from support.outside_task import WORDS
from support.repository import ROOT

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.chat import build
from efficientbench.data_tools.chat.build import build_conversations
from efficientbench.data_tools.chat.conversations import read_messages
from efficientbench.data_tools.chat.record import ConversationRecord
from efficientbench.data_tools.chat.render import make_renderer
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer
from efficientbench.data_tools.tokenizing.corpus import prepare_corpus
from efficientbench.data_tools.tokenizing.tokenize import tokenize_files
from efficientbench.data_tools.tokens.indexed import bin_path, document_hash, hashes_path, idx_path, mask_prefix
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.inspection import show_conversation, verify_pair
from efficientbench.data_tools.tokens.manifest import load_corpus, load_record, manifest_path
from efficientbench.data_tools.tokens.splitting import split_documents


def mixture(folder: Path, *tasks: dict[str, Any], seed: int = 7) -> Path:
    """Written as JSON, which is YAML too."""
    path = folder / "mixture.yaml"
    path.write_text(json.dumps({"seed": seed, "tasks": tasks}))
    return path


def found(prefix: Path) -> list[tuple[list[int], list[int]]]:
    """Ids and mask of each conversation of a pair."""
    ids, mask = IndexedDocuments(prefix), IndexedDocuments(mask_prefix(prefix))
    assert len(ids) == len(mask)
    return [(ids[number].tolist(), mask[number].tolist()) for number in range(len(ids))]


def wanted(rows: Path, tokenizer: Path) -> list[tuple[list[int], list[int]]]:
    """Ids and mask of each row of a file, in its order."""
    renderer = make_renderer(load_tokenizer(tokenizer), "own")
    each = [read_messages(json.loads(line)["messages"]) for line in rows.read_text().splitlines()]
    return [(one.ids.tolist(), one.mask.tolist()) for one in map(renderer.conversation, each)]


def key(pair: tuple[list[int], list[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(pair[0]), tuple(pair[1])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few rows have many parts."""
    monkeypatch.setattr(build, "PART_ROWS", 6)


@pytest.mark.usefixtures("small")
def test_unusable_rows_are_left_out_of_the_order_and_counted(rows: Path, tmp_path: Path, chat_bpe: Path) -> None:
    lines = rows.read_text().splitlines()
    wrong = {"messages": [{"role": "user", "content": "Hi"}]}
    # At a part's begin and end, side by side, and the last one.
    for place, line in {0: "{broken", 5: json.dumps(wrong), 6: "[]", 7: json.dumps({**wrong, "n": 1}), 40: "5"}.items():
        lines.insert(place, line)
    (tmp_path / "some.jsonl").write_text("\n".join(lines))
    tasks = ({"task": "messages", "path": "some.jsonl", "epochs": 2}, {"task": "support.outside_task:Spelling"})
    file = tmp_path / "mixture.yaml"
    file.write_text(json.dumps({"unusable": "drop", "tasks": [*tasks, {"task": "messages", "path": "some.jsonl"}]}))
    corpus = build_conversations(file, tmp_path / "chat", chat_bpe)
    counts = Counter(map(key, found(corpus.prefix)))
    good = [*map(key, wanted(rows, chat_bpe))]
    assert [counts[pair] for pair in good] == [3] * 40
    assert (len(counts), corpus.documents) == (40 + len(WORDS), 3 * 40 + len(WORDS))
    record = load_record(corpus.manifest, ConversationRecord)
    assert record is not None
    assert [task.conversations for task in record.tasks] == [40, len(WORDS), 40]
    assert [sorted(task.rejected.values()) for task in record.tasks] == [[1, 1, 1, 2], [], [1, 1, 1, 2]]
    hashes = np.fromfile(hashes_path(corpus.prefix), np.uint64).tolist()
    ids = IndexedDocuments(corpus.prefix)
    assert hashes == [int.from_bytes(document_hash(ids[each].tobytes()), "little") for each in range(len(ids))]


def test_a_mixture_of_unusable_rows_alone_is_refused(tmp_path: Path, chat_bpe: Path) -> None:
    (tmp_path / "some.jsonl").write_text("{broken")
    file = tmp_path / "mixture.yaml"
    file.write_text(json.dumps({"unusable": "drop", "tasks": [{"task": "messages", "path": "some.jsonl"}]}))
    with pytest.raises(DataError, match=r"mixture\.yaml: every row is unusable, such as by this reason: not JSON"):
        build_conversations(file, tmp_path / "chat", chat_bpe)


def test_sharegpts_rows_are_those_of_messages(rows: Path, tmp_path: Path, chat_bpe: Path) -> None:
    named = {"user": "human", "assistant": "gpt"}
    turns = [json.loads(line)["messages"] for line in rows.read_text().splitlines()]
    shared = [[{"from": named[each["role"]], "value": each["content"]} for each in row] for row in turns]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps({"conversations": row}) + "\n" for row in shared))
    made = [
        build_conversations(mixture(tmp_path, {"task": "messages", "path": name}), tmp_path / name[:4], chat_bpe)
        for name in ("rows.jsonl", "some.jsonl")
    ]
    assert made[0].fingerprint == made[1].fingerprint


@pytest.mark.usefixtures("small")
def test_a_mixture_takes_its_rows_epochs_and_ranges(rows: Path, tmp_path: Path, chat_bpe: Path) -> None:
    file = mixture(
        tmp_path,
        {"task": "messages", "path": "rows.jsonl", "start": 10, "stop": 20},
        {"task": "smoltalk", "path": "rows.jsonl", "rows": 7, "epochs": 3},
        {"task": "support.outside_task:Spelling"},
    )
    corpus = build_conversations(file, tmp_path / "out" / "chat", chat_bpe)
    pairs = found(corpus.prefix)
    of_file = [*map(key, wanted(rows, chat_bpe))]
    counts = Counter(map(key, pairs))
    spelled = {pair: count for pair, count in counts.items() if pair not in of_file}
    assert (len(spelled), set(spelled.values())) == (len(WORDS), {1})
    epochs = {pair: count - (pair in of_file[10:20]) for pair, count in counts.items() if pair in of_file}
    assert Counter(epochs.values())[3] == 7
    assert set(epochs.values()) <= {0, 3}
    assert all(counts[pair] for pair in of_file[10:20])
    # One order over all tasks, and not one task after the other.
    places = [number for number, pair in enumerate(pairs) if key(pair) in spelled]
    assert places != [*range(len(pairs) - len(WORDS), len(pairs))]
    record = load_record(corpus.manifest, ConversationRecord)
    assert record is not None
    assert [(task.conversations, task.epochs) for task in record.tasks] == [(10, 1), (7, 3), (5, 1)]
    assert corpus.documents == len(pairs) == 10 + 21 + 5
    assert corpus.tokens == sum(len(ids) for ids, _ in pairs)
    assert record.supervised_tokens == sum(sum(mask) for _, mask in pairs)
    assert record.longest == max(len(ids) for ids, _ in pairs)
    code = str(ROOT / "tests" / "support" / "outside_task.py")
    assert [path for path, _ in record.plan["inputs"]] == [str(rows), code]
    hashes = hashes_path(corpus.prefix).read_bytes()
    dtype = IndexedDocuments(corpus.prefix).dtype
    assert hashes == b"".join(document_hash(np.array(ids, dtype).tobytes()) for ids, _ in pairs)


@pytest.mark.usefixtures("small")
def test_the_order_is_the_same_for_any_number_of_processes(rows: Path, tmp_path: Path, chat_bpe: Path) -> None:
    one = mixture(tmp_path, {"task": "messages", "path": "rows.jsonl", "rows": 20, "epochs": 2})
    build_conversations(one, tmp_path / "a", chat_bpe)
    build_conversations(one, tmp_path / "b", chat_bpe, workers=2)
    for suffix in (".bin", ".idx", ".mask.bin", ".mask.idx", ".hashes"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    mixture(tmp_path, {"task": "messages", "path": "rows.jsonl", "rows": 20, "epochs": 2}, seed=8)
    build_conversations(one, tmp_path / "c", chat_bpe)
    assert bin_path(tmp_path / "a").read_bytes() != bin_path(tmp_path / "c").read_bytes()


def test_all_rows_are_written_in_shuffled_order(rows: Path, tmp_path: Path, chat_bpe: Path) -> None:
    corpus = build_conversations(
        mixture(tmp_path, {"task": "messages", "path": "rows.jsonl"}), tmp_path / "c", chat_bpe
    )
    pairs, own = [*map(key, found(corpus.prefix))], [*map(key, wanted(rows, chat_bpe))]
    assert pairs != own
    assert sorted(pairs) == sorted(own)
    messages = [each for line in rows.read_text().splitlines() for each in json.loads(line)["messages"]]
    assert corpus.utf8_bytes == sum(len(each["content"].encode()) for each in messages)


def test_a_complete_pair_is_reused_and_another_mixture_refused(rows: Path, tmp_path: Path, chat_bpe: Path) -> None:
    file = mixture(tmp_path, {"task": "messages", "path": "rows.jsonl"})
    prefix = tmp_path / "chat"
    corpus = build_conversations(file, prefix, chat_bpe)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("chat.*") if path.suffix != ".lock"}
    assert build_conversations(file, prefix, chat_bpe) == corpus
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("chat.*") if path.suffix != ".lock"} == before
    mixture(tmp_path, {"task": "messages", "path": "rows.jsonl", "epochs": 2})
    with pytest.raises(DataError, match="chat was begun with other mixture: take the same, or choose another name"):
        build_conversations(file, prefix, chat_bpe)
    mixture(tmp_path, {"task": "messages", "path": "rows.jsonl"})
    rows.write_text(rows.read_text().replace("Question", "Demand"))
    with pytest.raises(DataError, match=r"rows\.jsonl changed since .*chat was begun: put the old file back"):
        build_conversations(file, prefix, chat_bpe)
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "a"}\n')
    tokenize_files([text], tmp_path / "text", chat_bpe)
    with pytest.raises(DataError, match="text exists already, and was not made from conversations"):
        build_conversations(file, tmp_path / "text", chat_bpe)


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda prefix: damaged(bin_path(prefix)), r"chat\.bin: bytes 0 to"),
        (lambda prefix: damaged(bin_path(mask_prefix(prefix))), r"chat\.mask\.bin: bytes 0 to"),
        (lambda prefix: damaged(idx_path(mask_prefix(prefix))), r"chat\.mask\.idx: bytes 0 to"),
        (lambda prefix: bin_path(mask_prefix(prefix)).unlink(), r"chat\.mask\.bin is missing, which .* lists"),
        (lambda prefix: (prefix.parent / "chat.tokenizer" / "tokenizer.json").write_text("{}"), "tokenizer.json has"),
    ],
)
def test_damage_to_a_pair_is_named(rows: Path, tmp_path: Path, chat_bpe: Path, damage: Any, message: str) -> None:
    prefix = tmp_path / "chat"
    build_conversations(mixture(tmp_path, {"task": "messages", "path": "rows.jsonl"}), prefix, chat_bpe)
    verify_pair(prefix)
    damage(prefix)
    with pytest.raises(DataError, match=message):
        verify_pair(prefix)


def test_a_mask_with_invalid_values_is_refused_without_checksums(rows: Path, tmp_path: Path, chat_bpe: Path) -> None:
    """`inspect` does not show a mask that belongs to another pair."""
    prefix = tmp_path / "chat"
    file = mixture(tmp_path, {"task": "messages", "path": "rows.jsonl"})
    build_conversations(file, prefix, chat_bpe)
    mask = bin_path(mask_prefix(prefix))
    content = bytearray(mask.read_bytes())
    content[5] = 2
    mask.write_bytes(content)
    with pytest.raises(DataError, match=r"chat\.mask\.bin: byte 5: 2 is neither 0 nor 1"):
        build_conversations(file, prefix, chat_bpe)
    mask.write_bytes(bytes(len(content)))
    with pytest.raises(DataError, match=r"chat\.mask\.bin marks 0 tokens, but .* says"):
        build_conversations(file, prefix, chat_bpe)


def test_a_run_uses_the_pair_and_verifies_its_mask(rows: Path, tmp_path: Path, chat_bpe: Path) -> None:
    prefix = tmp_path / "chat"
    made = build_conversations(mixture(tmp_path, {"task": "messages", "path": "rows.jsonl"}), prefix, chat_bpe)
    assert prepare_corpus(prefix, None, tmp_path / "cache", 300) == made
    split = split_documents([prefix], (90, 10, 0), made.vocab_size, tmp_path / "cache")[0]
    assert (len(split.training), len(split.validation)) == (36, 4)
    damaged(bin_path(mask_prefix(prefix)))
    with pytest.raises(DataError, match=r"chat\.mask\.bin: bytes 0 to"):
        prepare_corpus(prefix, None, tmp_path / "cache", 300)


def test_a_moved_pair_keeps_its_tokenizer_and_template(rows: Path, tmp_path: Path, chat_bpe: Path) -> None:
    file = mixture(tmp_path, {"task": "messages", "path": "rows.jsonl"})
    build_conversations(file, tmp_path / "here" / "chat", chat_bpe)
    shutil.move(tmp_path / "here", tmp_path / "there")
    _, corpus = verify_pair(tmp_path / "there" / "chat")
    assert corpus is not None
    saved = load_tokenizer(corpus.tokenizer_folder)
    assert saved.fingerprint == load_tokenizer(chat_bpe).fingerprint
    config = json.loads((corpus.tokenizer_folder / "tokenizer_config.json").read_text())
    assert "{%- generation -%}" in config["chat_template"]


def test_commands_build_verify_and_inspect_conversations(rows: Path, tmp_path: Path, chat_bpe: Path) -> None:
    """Names of special tokens in the text are counted and stay text."""
    with rows.open("a") as stream:
        stream.write(
            json.dumps(
                {
                    "messages": [
                        {"role": "user", "content": "<|bos|> \x1b[31m"},
                        {"role": "assistant", "content": "<|bos|>!"},
                    ]
                }
            )
        )
    file = mixture(tmp_path, {"task": "messages", "path": "rows.jsonl", "start": 40})
    options = ("--tokenizer", chat_bpe, "--output", tmp_path / "chat", "--workers", "1")
    code, out, error = run("chat", file, *options)
    assert code == 0, error
    assert "1 conversation of" in out
    assert "names of special tokens in the text, kept as text: 2 x <|bos|>" in out
    code, out, error = run("inspect", tmp_path / "chat")
    assert code == 0, error
    assert "conversation 0 (" in out
    assert "<|bos|><|user_start|><|bos|> \\x1b[31m<|user_end|><|assistant_start|>⟦<|bos|>!<|assistant_end|>⟧" in out
    code, out, error = run("verify", tmp_path / "chat")
    assert (code, error) == (0, "")
    assert "whole: 1 document of" in out
    corpus = load_corpus(manifest_path(tmp_path / "chat"))
    ((ids, mask),) = found(corpus.prefix)
    coloured = show_conversation(np.array(ids), np.array(mask), load_tokenizer(chat_bpe), coloured=True)
    assert coloured.endswith("\x1b[32m<|bos|>!<|assistant_end|>\x1b[0m")
    assert coloured.startswith("\x1b[90m<|bos|><|user_start|>")
