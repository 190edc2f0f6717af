"""CORE: each row's losses, as a plain scorer finds them by the exported model; groups scored together as alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from oracles.oracle import build, weights_of
from oracles.plain_decoder import PlainDecoder
from support.configs import tiny
from support.core_bundle import MC, TASKS, plain_scores, write_bundle
from support.exported import checkpointed

from efficientbench.basics.errors import ConfigError, GenerationError
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.evaluation.core.bundle import NAMES, read_bundle
from efficientbench.evaluation.core.task import Core, continuations
from efficientbench.evaluation.scoring import Continuation, Scored, Scorer, _shared
from efficientbench.evaluation.task import ItemResult
from efficientbench.export.hugging_face import Model, write_model

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT

pytestmark = pytest.mark.usefixtures("single_rank")

Logits = Callable[[torch.Tensor], torch.Tensor]

FEW = ("jeopardy", "copa", "winogrande", "agi_eval_lsat_ar")
SHORT = ("lambada_openai", *FEW[1:])
"""Without the ten examples of Jeopardy's prompts."""


def config_of(name: str, *overrides: str) -> RunConfig:
    return tiny(name, "model.vocab_size=301", "model.init_std=0.2", "model.tied=false", *overrides)


def scored_by(core: Core) -> dict[str, ItemResult]:
    return {result.item: result for batch in core.score(core.items()) for result in batch}


def plain_logits(config: RunConfig, model: GPT, tokenizer: TextTokenizer, folder: Path) -> Logits:
    """Those of the formula in float64."""
    return PlainDecoder(weights_of(model), config.model)


def exported_logits(config: RunConfig, model: GPT, tokenizer: TextTokenizer, folder: Path) -> Logits:
    """Those of transformers' model from the export."""
    from transformers import AutoModelForCausalLM

    write_model(Model(config, checkpointed(weights_of(model)), tokenizer), folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    return lambda tokens: loaded(tokens).logits


@pytest.mark.parametrize(
    ("names", "limit", "oracle"),
    [
        (SHORT, 5, plain_logits),
        pytest.param(FEW, None, plain_logits, marks=pytest.mark.proof),
        pytest.param(tuple(TASKS), None, exported_logits, marks=pytest.mark.proof),
    ],
)
def test_every_row_scores_as_by_a_plain_scorer(
    names: Sequence[str],
    limit: int | None,
    oracle: Callable[[RunConfig, GPT, TextTokenizer, Path], Logits],
    tokenizers: dict[str, TextTokenizer],
    tmp_path: Path,
) -> None:
    config, tokenizer = config_of("gqa_1.5B"), tokenizers["own"]
    model = build(config).eval()
    logits = oracle(config, model, tokenizer, tmp_path / "hf")
    write_bundle(tmp_path, names)
    core = Core(model, tokenizer, read_bundle(tmp_path, limit), None, limit, 4096)
    results = scored_by(core)
    rights = {}
    for name in names:
        plain = plain_scores(
            logits,
            lambda text: tokenizer.encode_batch([text])[0],
            tokenizer.eod_id,
            tmp_path,
            name,
            limit,
        )
        found = [results[f"{name}/{number}"] for number in range(len(plain))]
        for number, (ours, theirs) in enumerate(zip(found, plain, strict=True)):
            for loss, wanted in zip(ours.losses or (), theirs.losses, strict=True):
                assert math.isclose(loss, wanted, abs_tol=1e-4) if loss is not None else math.isnan(wanted)
            assert ours.right == theirs.right, f"{name}/{number}"
        rights[name] = sum(each.right for each in plain) / len(plain)
    summary = core.summary(results)
    assert {name: summary.figures[name] for name in names} == rights
    if len(names) == 22:
        centred = [(rights[name] - TASKS[name][3] / 100) / (1 - TASKS[name][3] / 100) for name in names]
        assert summary.figures["core"] == pytest.approx(sum(centred) / 22)
        assert not summary.unavailable
    else:
        assert summary.figures["core"] is None
        assert summary.unavailable["core"].startswith("18 of the 22 tasks of CORE are missing: hellaswag_zeroshot")
        assert summary.unavailable["squad"] == "core.yaml does not list it"


def test_the_tasks_match_those_of_the_metric() -> None:
    assert set(NAMES) == set(TASKS)
    assert len(NAMES) == 22


VARIANTS = (
    *("gqa_1.5B", "nsa_1.5B", "learnable_absolute_1.5B"),
    *(pytest.param(name, marks=pytest.mark.proof) for name in ("mla_1.5B", "relative_1.5B", "moe_1.5Bx8")),
)


def groups_of(vocabulary: int) -> list[list[Continuation]]:
    """Groups with and without a common beginning, with choices of many lengths, an empty one among them."""
    generator = np.random.default_rng(3)

    def tokens(count: int) -> list[int]:
        return [int(each) for each in generator.integers(0, vocabulary, count)]

    groups = []
    for shared in (1, 15, 17, 24, 40):
        beginning = tokens(shared)
        ends = [tokens(count) for count in (1, 4, 7)]
        groups.append([Continuation([*beginning, *end], shared) for end in ends])
        groups.append([Continuation([*beginning, *tokens(3), *ends[0]], shared + 3), Continuation(beginning, shared)])
    return groups


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("budget", [1, 10_000])
def test_groups_have_the_same_scores_in_any_batch(name: str, budget: int) -> None:
    config = config_of(name, "training.seq_len=64")
    longest = 48 if name.startswith("learnable") else None
    if longest:
        config = config_of(name, f"model.position.max_seq_len={longest}", "training.seq_len=32")
    model, groups = build(config).eval(), groups_of(301)
    assert sum(map(bool, map(_shared, groups))) == 3
    found = dict(each for batch in Scorer(model, longest, budget).score(groups) for each in batch)
    assert sorted(found) == list(range(len(groups)))
    for number, group in enumerate(groups):
        for each, ours in zip(group, found[number], strict=True):
            np.testing.assert_allclose(ours.losses, alone(model, each), atol=2e-5)
            assert len(ours.losses) == len(each.tokens) - each.first


def alone(model: GPT, each: Continuation) -> list[float]:
    with torch.no_grad():
        table = model(torch.tensor([list(each.tokens)]))[0].double().log_softmax(dim=-1)
    return [-table[at - 1, each.tokens[at]].item() for at in range(each.first, len(each.tokens))]


def test_shared_tokens_of_choices_are_computed_once() -> None:
    model = build(config_of("gqa_1.5B")).eval()
    computed: list[int] = []
    hook = model.register_forward_pre_hook(lambda module, given: computed.append(given[0].numel()))
    shots = [each % 300 for each in range(200)]
    groups = [[Continuation([*shots, choice, 7, 8], 200) for choice in range(4)] for _ in range(3)]
    list(Scorer(model, None, 10_000).score(groups))
    hook.remove()
    beginnings, ends = computed
    assert 3 * 199 <= beginnings <= 3 * 199 * 1.13
    assert ends == 3 * 4 * 3


@pytest.mark.parametrize("name", ["gqa_1.5B", "nsa_1.5B"])
def test_choices_that_differ_in_their_last_token_are_computed_once(name: str) -> None:
    model = build(config_of(name, "training.seq_len=64")).eval()
    computed: list[int] = []
    hook = model.register_forward_pre_hook(lambda module, given: computed.append(given[0].numel()))
    shots = [each % 300 for each in range(40)]
    groups = [
        # A single pass over the shots.
        [Continuation([*shots, letter], 40) for letter in (5, 9, 17, 9)],
        # One over the shots, and one over two rows of two tokens.
        [Continuation([*shots, *end], 40) for end in ((5, 6), (5, 7), (8, 6))],
        # What is scored differs, though the model reads the same.
        [Continuation([7, 8, 9], 1), Continuation([7, 8, 3], 2), Continuation([7, 8, 4], 2)],
    ]
    found = dict(each for batch in Scorer(model, None, 40).score(groups) for each in batch)
    hook.remove()
    assert sorted(computed) == [2 * 2, 2 * 2, 40, 40]
    for number, group in enumerate(groups):
        for each, ours in zip(group, found[number], strict=True):
            np.testing.assert_allclose(ours.losses, alone(model, each), atol=2e-5)
    letters = [scored.losses for scored in found[0]]
    assert letters[1] == letters[3]
    assert letters[0] != letters[1]


def test_too_long_prompts_are_cut_at_their_beginning(tokenizers: dict[str, TextTokenizer]) -> None:
    encode = tokenizers["own"].encode_batch
    texts = ["import os " * 20 + "the end", "import os " * 20 + "no"]
    whole = continuations(MC, texts, encode, 0, None)
    cut = continuations(MC, texts, encode, 0, 30)
    for long, short in zip(whole, cut, strict=True):
        assert list(short.tokens) == list(long.tokens)[-30:]
        assert list(short.tokens[short.first :]) == list(long.tokens[long.first :])
    with pytest.raises(ConfigError, match=r"an answer has \d+ tokens, and the model 3 positions"):
        continuations(MC, texts, encode, 0, 3)


def test_a_broken_model_is_named() -> None:
    model = build(config_of("gqa_1.5B")).eval()
    next(model.parameters()).data[7] = torch.nan
    with pytest.raises(GenerationError, match="a loss is not finite"):
        list(Scorer(model, None, 99).score([[Continuation([1, 7, 3], 1)]]))
    assert model.cache is None


def test_an_empty_set_of_items_has_no_score() -> None:
    assert math.isnan(Scored(np.zeros(0), np.zeros(0, np.int64)).mean)


def test_figures_can_be_computed_over_a_part_of_the_items(tokenizers: dict[str, TextTokenizer], tmp_path: Path) -> None:
    config, tokenizer = config_of("gqa_1.5B"), tokenizers["own"]
    write_bundle(tmp_path, FEW)
    core = Core(build(config).eval(), tokenizer, read_bundle(tmp_path, None), None, None, 4096)
    texts = core.texts()
    assert list(texts) == [item.name for item in core.items()]
    rows = core.bundle.tasks["copa"].rows
    assert tokenizer.decode(texts["copa/1"]) == rows[1]["query"]
    schema = core.bundle.tasks["winogrande"].rows[2]
    assert tokenizer.decode(texts["winogrande/2"]) == schema["context_options"][schema["gold"]]
    kept = [name for name in texts if not name.startswith("jeopardy/") and name not in ("copa/0", "copa/3")]
    results = {name: ItemResult(name, "", 0, number % 3 == 0) for number, name in enumerate(kept)}
    summary = core.summary(results)
    of_copa = [result.right for name, result in results.items() if name.startswith("copa/")]
    assert summary.figures["copa"] == sum(map(bool, of_copa)) / (len(rows) - 2)
    assert summary.figures["jeopardy"] is None
    assert summary.unavailable["jeopardy"] == "none of its items is left"
