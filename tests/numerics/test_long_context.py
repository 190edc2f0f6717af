"""Hidden numbers and loss by position beside transformers on the export."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.oracle import build, weights_of
from support.chat_tokenizers import byte_ids, of_bytes
from support.configs import tiny
from support.exported import checkpointed
from support.learning import learn

from efficientbench.basics.errors import ConfigError
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.evaluation.long_context import hidden, position_loss
from efficientbench.evaluation.long_context.hidden import DEPTHS, NEEDLE, PASSKEY, Hidden, Wording
from efficientbench.evaluation.long_context.position_loss import PositionLoss, bounds
from efficientbench.evaluation.loss import Loss, Text
from efficientbench.evaluation.results import ResultFile
from efficientbench.evaluation.task import Options
from efficientbench.export.hugging_face import Model, write_model
from efficientbench.generation.open_run import Opened

pytestmark = pytest.mark.usefixtures("single_rank")

LENGTHS = (224, 288)
TRAINED = 256


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return of_bytes(tmp_path_factory.mktemp("tokenizer") / "own")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": f"Line {each} of a text. " * 7}) + "\n" for each in range(12)))
    return path


def config_of(name: str, *overrides: str) -> RunConfig:
    words = ("model.vocab_size=266", "model.init_std=0.2", "model.tied=false", f"training.seq_len={TRAINED}")
    return tiny(name, *words, *overrides)


def opened(name: str, tokenizer: TextTokenizer, *overrides: str) -> Opened:
    config = config_of(name, *overrides)
    return Opened(build(config).eval(), config, tokenizer, 1, ())


@pytest.mark.parametrize("wording", [PASSKEY, NEEDLE], ids=["passkey", "needle"])
def test_the_hidden_number_is_at_its_depth(
    wording: Wording, tokenizer: TextTokenizer, text: Path, tmp_path: Path
) -> None:
    run = opened("gqa_1.5B", tokenizer)
    options = Options(tmp_path, text=text, limit=2, lengths=(384, 512))
    task = Hidden("task", run, options, wording)
    assert len(task.items()) == 2 * len(DEPTHS) * 2
    seen = set()
    for item in task.items():
        cell, repeat = task.cells[item.name]
        prompt, answer = task.prompt(cell, repeat)
        assert len(prompt) + len(answer) == cell.length
        whole = tokenizer.decode(prompt)
        number = tokenizer.decode(answer).strip()
        assert tokenizer.decode(answer) == f" {number}"
        hidden = whole.index("\nThe pass key" if wording is PASSKEY else "\nThe secret")
        filler_begin = whole.index(".\n") + 2 if wording is PASSKEY else 0
        filler_end = whole.rindex("\nWhat is the ")
        line_end = whole.index("\n", hidden + 1) + 1
        room = filler_end - filler_begin - (line_end - hidden)
        assert abs((hidden - filler_begin) / room - cell.depth) < 0.01
        assert number in whole[hidden:line_end]
        assert number not in whole[:hidden] + whole[line_end:]
        seen.add(number)
        # The same from call to call.
        assert task.prompt(cell, repeat) == (prompt, answer)
    assert len(seen) > 15


@pytest.mark.proof
def test_answers_match_transformers(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    config = config_of("gqa_1.5B")
    model = build(config)
    run = Opened(model, config, tokenizer, 1, ())
    task = Hidden("passkey", run, Options(tmp_path, limit=1, lengths=LENGTHS), PASSKEY)
    items = {name: [token for part in task.prompt(*cell) for token in part] for name, cell in task.cells.items()}
    # It learns the answers of half the items by heart, so that right ones occur.
    known = [tokens for tokens in items.values() if len(tokens) == LENGTHS[0]]
    sequences = torch.tensor(known)
    answers = torch.zeros_like(sequences)
    answers[:, -6:] = 1
    learn(model, config, sequences, answers)
    write_model(Model(config, checkpointed(weights_of(model)), tokenizer), tmp_path / "export")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    results = {result.item: result for part in task.score(task.items()) for result in part}
    for name, tokens in items.items():
        with torch.no_grad():
            logits = theirs(torch.tensor([tokens[:-1]])).logits[0, -6:].double()
        wanted = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[-6:])).item()
        assert results[name].losses == pytest.approx((wanted,), abs=1e-4)
        assert results[name].right == (logits.argmax(dim=1).tolist() == tokens[-6:])
        assert byte_ids(results[name].details["gold"]) == tokens[-6:]
    summary = task.summary(results)
    assert summary.figures == {"accuracy_within": 1.0, "accuracy_beyond": 0.0}
    assert [(cell["length"], cell["depth"], cell["right"]) for cell in summary.parts["grid"]] == [
        (length, depth, int(length == LENGTHS[0])) for length in LENGTHS for depth in DEPTHS
    ]


@pytest.mark.proof
def test_loss_by_position_matches_transformers(tokenizer: TextTokenizer, text: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    run = opened("gqa_1.5B", tokenizer)
    write_model(Model(run.config, checkpointed(weights_of(run.model)), tokenizer), tmp_path / "export")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    task = PositionLoss(run, Options(tmp_path, text=text, lengths=(300,), limit=3))
    results = {result.item: result for part in task.score(task.items()) for result in part}
    found = task.summary(results)
    documents = [json.loads(line)["text"] for line in text.read_text().splitlines()]
    # The end of a document is token 0.
    stream = [0, *(token for document in documents for token in [*byte_ids(document), 0])]
    tokens = torch.tensor(stream[: 3 * 300]).view(3, 300)
    with torch.no_grad():
        logits = theirs(tokens[:, :-1]).logits.double()
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").numpy()
    assert found.figures["loss"] == pytest.approx(losses.mean(), abs=1e-4)
    at = 0
    for each in found.parts["ranges"]:
        count = each["end"] - each["first"]
        assert each["loss"] == pytest.approx(losses[:, at : at + count].mean(), abs=1e-4)
        spread = losses[:, at : at + count].mean(axis=1).std(ddof=1) / 3**0.5
        assert each["standard_error"] == pytest.approx(spread, abs=1e-4)
        at += count
    assert at == 299
    # Positions 181 to 255, the last range of √2 within 256; the first column is that of position 1.
    assert found.figures["loss_at_trained_length"] == pytest.approx(losses[:, 180:255].mean(), abs=1e-4)
    shorter = PositionLoss(run, Options(tmp_path, text=text, lengths=(TRAINED - 1,), limit=1))
    of_one = {result.item: result for part in shorter.score(shorter.items()) for result in part}
    found = shorter.summary(of_one)
    assert found.figures["loss_at_trained_length"] is None
    assert found.unavailable == {"loss_at_trained_length": "no sequence has the trained length, 256 tokens"}


def test_ranges_hold_every_position_once() -> None:
    for length, trained in ((2, 2048), (3, 2), (17, 1), (2048, 2048), (4096, 1536), (1000, 1536)):
        ranges = bounds(length, trained)
        assert [position for first, end in ranges for position in range(first, end)] == [*range(1, length)]
        # The last of the trained length is as wide as the others.
        if 16 < trained <= length:
            [first] = [first for first, end in ranges if end == trained]
            assert first == pytest.approx(trained / 2**0.5, abs=0.5)


def test_truncated_documents_have_an_end_token(
    tokenizer: TextTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, whole = byte_ids("A document that a validation has c"), [*byte_ids("And one that it has not. "), 0]
    documents = [np.array(each) for each in (cut, whole, cut, whole)]
    for module in (hidden, position_loss):
        monkeypatch.setattr(module, "own_validation", lambda folder: Text(documents, [], None, "validation"))
    run = opened("gqa_1.5B", tokenizer)
    stream = [*cut, 0, *whole, *cut, 0, *whole]
    assert Hidden("needle", run, Options(tmp_path), NEEDLE).filler.tolist() == stream
    [sequence] = PositionLoss(run, Options(tmp_path, lengths=(100,))).sequences.values()
    assert sequence.tolist() == [0, *stream][:100]


@pytest.mark.parametrize("wording", [PASSKEY, NEEDLE], ids=["passkey", "needle"])
def test_a_half_scored_task_resumes(wording: Wording, tokenizer: TextTokenizer, text: Path, tmp_path: Path) -> None:
    options = Options(tmp_path, text=text, limit=1, lengths=(256,))
    path = tmp_path / "task.jsonl"
    for there in (0, 3):
        task = Hidden("task", opened("gqa_1.5B", tokenizer), options, wording)
        with ResultFile(path, {"task": "task", "settings": dict(task.settings)}) as file:
            assert (file.replaced, len(file.results)) == (None, there)
            left = [item for item in task.items() if item.name not in file.results]
            for results in task.score(left[:3]):
                file.append(results)
    assert len(path.read_text().splitlines()) == 1 + len(DEPTHS)


def test_lengths_end_at_the_last_position(tokenizer: TextTokenizer, text: Path, tmp_path: Path) -> None:
    learnable = opened("learnable_absolute_1.5B", tokenizer, f"model.position.max_seq_len={TRAINED}")
    assert Hidden("passkey", learnable, Options(tmp_path, limit=1), PASSKEY).lengths == [TRAINED]
    rotary = opened("gqa_1.5B", tokenizer)
    assert Hidden("passkey", rotary, Options(tmp_path, limit=1), PASSKEY).lengths == [TRAINED, 2 * TRAINED]
    with pytest.raises(ConfigError, match="--lengths 300: the model has 256 positions"):
        Hidden("passkey", learnable, Options(tmp_path, lengths=(128, 300)), PASSKEY)
    with pytest.raises(ConfigError, match=r"passkey: the question alone has \d+ tokens"):
        Hidden("passkey", rotary, Options(tmp_path, lengths=(64,)), PASSKEY)
    with pytest.raises(ConfigError, match=r"has 1,\d+ tokens, and a sequence 9,000: give a longer text"):
        PositionLoss(rotary, Options(tmp_path, text=text, lengths=(9000,)))


def test_numbers_of_more_tokens_make_no_item_longer(
    tokenizer: TextTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some vocabularies have 99999 in fewer tokens than other numbers."""

    def ids(task: Hidden, text: str) -> list[int]:
        return [each for letter in text for each in tokenizer.encode_batch([letter])[0] * (2 if letter in "123" else 1)]

    monkeypatch.setattr(Hidden, "_ids", ids)
    run = opened("gqa_1.5B", tokenizer)
    asked = tuple(range(160, 240))
    task = Hidden("task", run, Options(tmp_path, limit=2, lengths=asked), PASSKEY)
    assert 0 < len(task.lengths) < len(asked)
    for cell, repeat in task.cells.values():
        assert sum(map(len, task.prompt(cell, repeat))) == cell.length


def test_another_first_token_is_another_text(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    """It is no target, but what the others are predicted from."""
    settings = []
    for word in ("xylophone", "zylophone"):
        path = tmp_path / f"{word}.txt"
        path.write_text(f"{word} says hello to all.")
        settings.append(Loss(opened("gqa_1.5B", tokenizer), Options(tmp_path, text=path)).settings)
    assert settings[0]["text_sha256"] == settings[1]["text_sha256"]
    assert settings[0] != settings[1]


def test_each_needle_is_in_a_different_piece_of_the_text(tokenizer: TextTokenizer, text: Path, tmp_path: Path) -> None:
    task = Hidden("needle", opened("gqa_1.5B", tokenizer), Options(tmp_path, text=text, lengths=(256,)), NEEDLE)
    beginnings = {tuple(task.prompt(*task.cells[item.name])[0][:40]) for item in task.items()}
    assert len(beginnings) > 30
    assert np.array_equal(task.filler[:3], byte_ids("Lin"))
