"""CORE on rows whose gold is what the formula in float64 prefers: all are right, and with another gold all wrong."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles.oracle import build, weights_of
from oracles.plain_decoder import PlainDecoder
from support.configs import tiny
from support.core_bundle import LM, MC, SCHEMA, WORDS, plain_scores, write_bundle
from support.proofs import proofs_but

from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.evaluation.core.bundle import read_bundle
from efficientbench.evaluation.core.task import Core

pytestmark = pytest.mark.usefixtures("single_rank")

Rows = list[dict[str, Any]]
ROWS = 50
WITHOUT_SHOTS = {MC: "copa", SCHEMA: "winogrande", LM: "lambada_openai"}


@pytest.mark.parametrize("kind", proofs_but([MC], WITHOUT_SHOTS))
def test_rows_with_the_preferred_gold_are_right_and_others_wrong(
    kind: str, tokenizers: dict[str, TextTokenizer], tmp_path: Path
) -> None:
    config = tiny("gqa_1.5B", "model.vocab_size=301", "model.init_std=0.2", "model.tied=false")
    tokenizer, name = tokenizers["own"], WITHOUT_SHOTS[kind]
    model = build(config).eval()
    decoder = PlainDecoder(weights_of(model), config.model)
    write_bundle(tmp_path, [name], ROWS)
    [path] = (tmp_path / "eval_data").glob("*/*.jsonl")
    if kind == LM:
        preferred: Rows = likeliest_ends(decoder, tokenizer)
        others: Rows = [
            {**row, "continuation": "os" if row["continuation"][0] == "i" else "import"} for row in preferred
        ]
    else:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        random.Random(1337).shuffle(rows)
        encode = tokenizer.encode_batch
        found = plain_scores(decoder, lambda text: encode([text])[0], tokenizer.eod_id, tmp_path, name)
        golds = [each.losses.index(min(each.losses)) for each in found]
        assert set(golds) == {0, 1, 2}
        preferred = [{**row, "gold": gold} for row, gold in zip(rows, golds, strict=True)]
        others = [{**row, "gold": (gold + 1) % 3} for row, gold in zip(rows, golds, strict=True)]
    for kept, accuracy in ((preferred, 1.0), (others, 0.0)):
        path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        core = Core(model, tokenizer, read_bundle(tmp_path, None), None, None, 4096)
        results = {result.item: result for batch in core.score(core.items()) for result in batch}
        assert len(results) == ROWS
        assert core.summary(results).figures[name] == accuracy


def likeliest_ends(decoder: PlainDecoder, tokenizer: TextTokenizer) -> Rows:
    """Rows of language that end with one to three tokens, each the likeliest by the formula.

    An end must begin with a blank, and its text must give the same tokens again.
    """
    generator, rows = random.Random(7), Rows()
    for _ in range(30):
        if len(rows) >= ROWS:
            break
        growing = [" ".join(generator.choices(WORDS, k=6)) for _ in range(200)]
        ends: dict[str, list[int]] = {context: [] for context in growing}
        for _ in range(3):
            if not growing:
                break
            contexts = tokenizer.encode_batch(growing)
            before = [[*ids, *ends[context]] for ids, context in zip(contexts, growing, strict=True)]
            after = likeliest(decoder, [[tokenizer.eod_id, *ids] for ids in before])
            longer = [[*ends[context], token] for context, token in zip(growing, after, strict=True)]
            texts = [tokenizer.decode(end) for end in longer]
            whole = tokenizer.encode_batch([context + text for context, text in zip(growing, texts, strict=True)])
            same = [
                at for at, text in enumerate(texts) if text[:1] == " " and whole[at] == [*contexts[at], *longer[at]]
            ]
            ends.update((growing[at], longer[at]) for at in same)
            growing = [growing[at] for at in same]
        texts_of = {context: tokenizer.decode(end) for context, end in ends.items() if end}
        rows += [{"context": context, "continuation": text[1:]} for context, text in texts_of.items() if text.strip()]
    return rows[:ROWS]


def likeliest(decoder: PlainDecoder, sequences: list[list[int]]) -> list[int]:
    """The token after each."""
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(each) for each in sequences], batch_first=True)
    last = torch.tensor([len(each) - 1 for each in sequences])
    with torch.no_grad():
        found: list[int] = decoder(padded)[torch.arange(len(last)), last].argmax(dim=-1).tolist()
    return found
