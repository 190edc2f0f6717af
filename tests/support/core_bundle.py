"""Small evaluation bundles in the layout of DCLM's, and a plain scorer of their rows by another program's model.

The scorer follows the description in DCLM (arXiv 2406.11794): one sequence at a time, in float64, without batches,
padding or caches.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

ANSWER = "\nAnswer: "
MC, SCHEMA, LM = "multiple_choice", "schema", "language_modeling"
TASKS: dict[str, tuple[int, str, str, float]] = {
    "hellaswag_zeroshot": (0, MC, " ", 25),
    "jeopardy": (10, LM, ANSWER, 0),
    "bigbench_qa_wikidata": (10, LM, " ", 0),
    "arc_easy": (10, MC, ANSWER, 25),
    "arc_challenge": (10, MC, ANSWER, 25),
    "copa": (0, MC, " ", 50),
    "commonsense_qa": (10, MC, " ", 20),
    "piqa": (10, MC, ANSWER, 50),
    "openbook_qa": (0, MC, " ", 25),
    "lambada_openai": (0, LM, " ", 0),
    "hellaswag": (10, MC, " ", 25),
    "winograd": (0, SCHEMA, " ", 50),
    "winogrande": (0, SCHEMA, " ", 50),
    "bigbench_dyck_languages": (10, LM, " ", 0),
    "agi_eval_lsat_ar": (3, MC, " ", 25),
    "bigbench_cs_algorithms": (10, LM, " ", 0),
    "bigbench_operators": (10, LM, " ", 0),
    "bigbench_repeat_copy_logic": (10, LM, " ", 0),
    "squad": (10, LM, " ", 0),
    "coqa": (0, LM, " ", 0),
    "boolq": (10, MC, ANSWER, 62),
    "bigbench_language_identification": (10, MC, " ", 25),
}
"""Name → shots, type, delimiter, baseline in percent."""
WORDS = (
    "import",
    "os",
    "path",
    "while the",
    "model",
    "reads",
    "1999",
    "tokens",
    "and",
    "writes",
    "größer",
    "numbers",
    "漢字",
)


def write_bundle(folder: Path, names: Collection[str] = TASKS, rows: int = 14) -> None:
    """A bundle of these tasks with so many rows each, some of whose choices begin alike or are of other lengths."""
    generator = random.Random(5)

    def text(fewest: int, most: int) -> str:
        return " ".join(generator.choice(WORDS) for _ in range(generator.randint(fewest, most)))

    def row(kind: str) -> dict[str, Any]:
        if kind == LM:
            return {"context": f" {text(3, 12)} ", "continuation": text(1, 3)}
        options, gold = [text(1, 5) for _ in range(3)], generator.randrange(3)
        if kind == SCHEMA:
            return {
                "context_options": [f"{text(1, 2)} {each}" for each in options],
                "continuation": text(2, 5),
                "gold": gold,
            }
        # The second begins as the first does.
        return {"query": text(4, 12), "choices": [options[0], f"{options[0]} {options[1]}", options[2]], "gold": gold}

    listed = []
    for name in names:
        shots, kind, delimiter, _ = TASKS[name]
        path = folder / "eval_data" / kind / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row(kind)) + "\n" for _ in range(rows)), encoding="utf-8")
        listed.append(
            {"label": name, "dataset_uri": f"{kind}/{name}.jsonl", "num_fewshot": [shots], "icl_task_type": kind}
        )
        if delimiter != " ":
            listed[-1]["continuation_delimiter"] = delimiter
    (folder / "core.yaml").write_text(yaml.safe_dump({"icl_tasks": listed}))
    baselines = [f"{name},x,{TASKS[name][3]}" for name in TASKS]
    (folder / "eval_meta_data.csv").write_text("\n".join(["Eval Task,Description,Random baseline", *baselines]) + "\n")


@dataclass(frozen=True)
class Plain:
    """What the plain scorer finds of a row."""

    losses: list[float]
    right: bool


def plain_scores(
    logits: Callable[[torch.Tensor], torch.Tensor],
    encode: Callable[[str], list[int]],
    bos: int,
    folder: Path,
    name: str,
    limit: int | None = None,
) -> list[Plain]:
    """Score the rows of a task in their shuffled order; `logits`: tokens [1, S] → [1, S, V]."""
    listed = {each["label"]: each for each in yaml.safe_load((folder / "core.yaml").read_text())["icl_tasks"]}[name]
    with (folder / "eval_data" / listed["dataset_uri"]).open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    random.Random(1337).shuffle(rows)
    rows = rows[:limit]
    delimiter, kind = listed.get("continuation_delimiter", " "), listed["icl_task_type"]

    def options(row: dict[str, Any]) -> list[tuple[str, str]]:
        if kind == MC:
            return [(row["query"], choice) for choice in row["choices"]]
        if kind == SCHEMA:
            return [(context, row["continuation"]) for context in row["context_options"]]
        return [(row["context"].strip(), row["continuation"])]

    found = []
    for number, row in enumerate(rows):
        others = [each for each in range(len(rows)) if each != number]
        shots = random.Random(1234 + number).sample(others, listed["num_fewshot"][0])
        blocks = [delimiter.join(options(rows[shot])[rows[shot].get("gold", 0)]) for shot in shots]
        texts = ["\n\n".join([*blocks, delimiter.join(option)]) for option in options(row)]
        sequences = [[bos, *encode(text)] for text in texts]
        if kind == MC:
            starts = [len(agreeing(sequences))] * len(sequences)
        elif kind == SCHEMA:
            starts = [len(each) - len(agreeing([other[::-1] for other in sequences])) for each in sequences]
        else:
            question = "\n\n".join([*blocks, options(row)[0][0] + delimiter]).strip()
            starts = [1 + len(encode(question))]
            assert sequences[0][: starts[0]] == [bos, *encode(question)]
        means, greedy = [], True
        for sequence, start in zip(sequences, starts, strict=True):
            with torch.no_grad():
                table = logits(torch.tensor([sequence]))[0].double().log_softmax(dim=-1)
            losses = [-table[place - 1, sequence[place]].item() for place in range(start, len(sequence))]
            means.append(sum(losses) / len(losses) if losses else float("nan"))
            greedy = table[start - 1 : len(sequence) - 1].argmax(dim=-1).tolist() == sequence[start:]
        right = greedy if kind == LM else means.index(min(means)) == row["gold"]
        found.append(Plain(means, right))
    return found


def agreeing(sequences: list[list[int]]) -> list[int]:
    """The longest common beginning."""
    beginning = []
    for tokens in zip(*sequences, strict=False):
        if len(set(tokens)) > 1:
            break
        beginning.append(tokens[0])
    return beginning
