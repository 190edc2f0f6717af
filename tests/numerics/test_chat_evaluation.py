"""Chat tasks beside transformers on the export, item by item: losses of letters, and answers that were learned."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from oracles.oracle import build, weights_of
from support.chat_tokenizers import ASSISTANT_END, OUTPUT, OUTPUT_END, PYTHON, PYTHON_END, byte_ids, of_bytes
from support.configs import tiny
from support.exported import checkpointed
from support.learning import learn
from support.outside_task import WORDS

from efficientbench.basics.errors import EvaluationError
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.chat.render import make_renderer
from efficientbench.data_tools.chat.task import Example
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.evaluation.chat.chat_tasks import make_chat_task
from efficientbench.evaluation.chat.questions import find_examples
from efficientbench.evaluation.task import ItemResult, Options, Summary
from efficientbench.export.hugging_face import Model, write_model
from efficientbench.generation.open_run import Opened

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT

pytestmark = [pytest.mark.usefixtures("single_rank"), pytest.mark.proof]

MMLU_ROWS = 50
MATHS = {
    "What is 2*3?": ("2*3", "6"),
    "And 40/16?": ("40/16", "2.5"),
    "Take 9 from 4.": ("4-9", "-5"),
}
FUNCTION = {
    "prompt": 'def up(x):\n    """Add 1."""\n',
    "canonical_solution": "    return x + 1\n",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n",
    "entry_point": "up",
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return of_bytes(tmp_path_factory.mktemp("tokenizer") / "own")


def config_of(name: str) -> RunConfig:
    return tiny(name, "model.vocab_size=266", "model.init_std=0.2", "model.tied=false")


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def evaluated(name: str, run: Opened, options: Options) -> tuple[dict[str, ItemResult], Summary]:
    task = make_chat_task(name, run, options)
    results = {result.item: result for part in task.score(task.items()) for result in part}
    assert results.keys() == {item.name for item in task.items()}
    return results, task.summary(results)


def exported(model: GPT, config: RunConfig, tokenizer: TextTokenizer, folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    write_model(Model(config, checkpointed(weights_of(model)), tokenizer), folder)
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize("name", ["gqa_1.5B", "mla_1.5B"])
def test_losses_of_letters_match_transformers(
    name: str, tokenizer: TextTokenizer, shared_data: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    config = config_of(name)
    model = build(config).eval()
    theirs = exported(model, config, tokenizer, tmp_path / "export")
    template = AutoTokenizer.from_pretrained(tmp_path / "export")
    examples = find_examples("mmlu", Options(tmp_path, shared_data))
    wanted: dict[str, list[float]] = {}
    rows = []
    for number, example in enumerate(examples.read(np.arange(MMLU_ROWS))):
        asked = example.messages[0].text
        ids = template.apply_chat_template([{"role": "user", "content": asked}], add_generation_prompt=True)
        with torch.no_grad():
            logits = theirs(torch.tensor([ids["input_ids"] if hasattr(ids, "keys") else ids])).logits[0, -1].double()
        losses = [float(logits.logsumexp(0) - logits[byte_ids(letter)[0]]) for letter in "ABCD"]
        wanted[f"row/{number}"] = losses
        # The model's own preference is right for every other row, so that right answers occur.
        right = losses.index(min(losses)) if number % 2 else (losses.index(min(losses)) + 1) % 4
        lines = asked.removeprefix("Multiple Choice question: ").split("\n- ")
        choices = [line.rsplit("=", 1)[0] for line in [*lines[1:-1], lines[-1].partition("\n\n")[0]]]
        rows.append({"question": lines[0], "choices": choices, "answer": right})
    write_rows(tmp_path / "mmlu.jsonl", rows)
    run = Opened(model, config, tokenizer, 1, ())
    results, summary = evaluated("mmlu", run, Options(tmp_path, tmp_path, batch_tokens=4096))
    for item, losses in wanted.items():
        assert results[item].losses == pytest.approx(losses, abs=1e-4)
        assert results[item].right == bool(int(item.removeprefix("row/")) % 2)
        assert results[item].answer == "ABCD"[losses.index(min(losses))]
    assert summary.figures == {"accuracy": 0.5}
    # Of a share p of n questions: √(p (1 − p) / (n − 1)).
    assert summary.parts == {"standard_error": pytest.approx(0.5 / 49**0.5), "chance": 0.25, "too_long": 0}


def learned(config: RunConfig, tokenizer: TextTokenizer, examples: Sequence[Example]) -> GPT:
    """A model that was trained on these conversations until it knows them, without what the calculator writes."""
    renderer = make_renderer(tokenizer, "own")
    rendered = [renderer.conversation(example.messages) for example in examples]
    longest = max(len(each.ids) for each in rendered)
    tokens = torch.zeros(len(rendered), longest, dtype=torch.int64)
    mask = torch.zeros(len(rendered), longest, dtype=torch.bool)
    for row, each in enumerate(rendered):
        tokens[row, : len(each.ids)] = torch.from_numpy(each.ids.astype(np.int64))
        mask[row, : len(each.ids)] = torch.from_numpy(each.mask.astype(bool))
    return learn(build(config), config, tokens, mask)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    maths = [
        {"question": asked, "answer": f"It is <<{term}={value}>>{value}.\n#### {value}"}
        for asked, (term, value) in MATHS.items()
    ]
    write_rows(folder / "gsm8k.jsonl", maths)
    write_rows(folder / "humaneval.jsonl", [FUNCTION])
    return folder


@pytest.fixture(scope="module")
def run(tokenizer: TextTokenizer, data: Path, single_rank: None) -> Opened:
    """A run whose model knows the answers of three tasks."""
    config = config_of("gqa_1.5B")
    options = Options(data, data)
    names = {"gsm8k": options, "humaneval": options, "support.outside_task:Spelling": replace(options, data=None)}
    sources = [find_examples(name, given) for name, given in names.items()]
    examples = [source[number] for source in sources for number in range(len(source))]
    return Opened(learned(config, tokenizer, examples), config, tokenizer, 1, ())


def greedy(theirs: Callable[[torch.Tensor], Any], prompt: list[int], new: int) -> list[int]:
    """Continue by transformers, the whole sequence anew for each token, with results from the table above."""
    tokens, values = list(prompt), dict(MATHS.values())
    while len(tokens) < len(prompt) + new and tokens[-1] != ASSISTANT_END:
        if tokens[-1] == PYTHON_END:
            call = tokens[len(tokens) - tokens[::-1].index(PYTHON) : -1]
            value = next(each for term, each in values.items() if byte_ids(term) == call)
            tokens += [OUTPUT, *byte_ids(value), OUTPUT_END]
            continue
        with torch.no_grad():
            tokens.append(int(theirs(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_answers_with_the_calculator_match_transformers(run: Opened, data: Path, tmp_path: Path) -> None:
    results, summary = evaluated("gsm8k", run, Options(data, data, max_new_tokens=96))
    assert summary.figures == {"accuracy": 1.0}
    theirs = exported(run.model, run.config, run.tokenizer, tmp_path)
    renderer = make_renderer(run.tokenizer, "own")
    for number, example in enumerate(find_examples("gsm8k", Options(data, data)).read(np.arange(len(MATHS)))):
        tokens = greedy(theirs, renderer.prompt(example.messages).tolist(), 96)
        # The text: what stands outside of call and result.
        text = tokens[: tokens.index(PYTHON)] + tokens[tokens.index(OUTPUT_END) + 1 : -1]
        assert byte_ids(results[f"row/{number}"].answer) == text
        assert results[f"row/{number}"].right is True


def test_answers_are_wrong_without_the_calculator(run: Opened, data: Path) -> None:
    task: Any = make_chat_task("gsm8k", run, Options(data, data, max_new_tokens=96))
    task.calculator = None
    results = [result for part in task.score(task.items()) for result in part]
    # It has never learned what stands in the place of a result.
    assert not all(result.right for result in results)


def test_programs_of_answers_are_run(run: Opened, data: Path) -> None:
    results, summary = evaluated("humaneval", run, Options(data, data, max_new_tokens=128, allow_code=True))
    [result] = results.values()
    assert result.right is True
    assert result.details["programs"] == [["passed"]]
    assert summary.figures == {"accuracy": 1.0}
    assert summary.parts["sandbox_held"]["memory"] is True


def test_an_external_task_is_sampled(run: Opened, data: Path) -> None:
    options = Options(data, None, max_new_tokens=24, samples=4, temperature=1.5)
    results, summary = evaluated("support.outside_task:Spelling", run, options)
    assert len(results) == len(WORDS)
    scores = [result.details["scores"] for result in results.values()]
    assert summary.figures["accuracy"] == sum(map(sum, scores)) / 4 / len(WORDS)
    assert summary.figures["pass_at_4"] == sum(any(each) for each in scores) / len(WORDS)
    assert summary.figures["pass_at_1"] == pytest.approx(summary.figures["accuracy"])
    # The same answers in batches of one, after others were scored.
    alone = replace(options, batch_tokens=1)
    task = make_chat_task("support.outside_task:Spelling", run, alone)
    [later] = [result for part in task.score(task.items()[3:4]) for result in part]
    assert later.details["samples"] == results[later.item].details["samples"]
    assert evaluated("support.outside_task:Spelling", run, replace(options, samples=1, temperature=0.0))[1].figures == {
        "accuracy": 1.0
    }


def test_external_code_that_cannot_score_is_named(run: Opened, data: Path) -> None:
    with pytest.raises(
        EvaluationError, match=r"outside_task\.Unscored, row/\d: ZeroDivisionError: it cannot be scored"
    ):
        evaluated("support.outside_task:Unscored", run, Options(data, max_new_tokens=2))


def test_answers_end_at_the_last_position(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    renderer, name = make_renderer(tokenizer, "own"), "support.outside_task:Spelling"
    examples = find_examples(name, Options(tmp_path)).read(np.arange(len(WORDS)))
    sizes = [len(renderer.prompt(example.messages)) for example in examples]
    # The longest question fills them all, the shortest leaves some.
    config = tiny(
        *("learnable_absolute_1.5B", "model.vocab_size=266", "model.init_std=0.2", "model.tied=false"),
        f"model.position.max_seq_len={max(sizes)}",
    )
    run = Opened(build(config).eval(), config, tokenizer, 1, ())
    results, summary = evaluated(name, run, Options(tmp_path))
    assert summary.parts["too_long"] == sizes.count(max(sizes)) == 1
    assert all(("too_long" in results[f"row/{row}"].details) == (size == max(sizes)) for row, size in enumerate(sizes))
    for row, size in enumerate(sizes):
        if size < max(sizes):
            alone = make_chat_task(name, run, Options(tmp_path, max_new_tokens=max(sizes) - size))
            [found] = [result for part in alone.score([alone.items()[row]]) for result in part]
            assert found.answer == results[f"row/{row}"].answer
