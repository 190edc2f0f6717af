"""lm-eval asks our models as it asks its own `hf` backend on the export."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from oracles.oracle import build, weights_of
from rich.console import Console
from support.configs import tiny
from support.exported import checkpointed

from efficientbench.basics.errors import ConfigError
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.evaluation import evaluate
from efficientbench.evaluation.scoring import SHORTEST_SHARED, Group, Scored
from efficientbench.export.hugging_face import Model, write_model
from efficientbench.generation.open_run import Opened

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from efficientbench.evaluation.lm_eval.adapter import Adapter

pytest.importorskip("lm_eval", reason="the extra `eval` is not installed")
pytestmark = [pytest.mark.usefixtures("single_rank"), pytest.mark.proof]

CONTEXT = "import os path while the model reads 1999 tokens and writes numbers "
CHOICES = (" of each layer", " 1234", " größer 漢字 is it", " ")
LONG = CONTEXT * 12


def adapter(name: str, tokenizer: TextTokenizer, budget: int, *overrides: str) -> tuple[Adapter, Opened]:
    from efficientbench.evaluation.lm_eval.adapter import Adapter

    config = tiny(
        name, "model.vocab_size=301", "model.init_std=0.2", "model.tied=false", "training.seq_len=64", *overrides
    )
    run = Opened(build(config).eval(), config, tokenizer, 1, ())
    return Adapter(run, budget, Console(quiet=True)), run


def instances(kind: Any, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, given, number) for number, given in enumerate(arguments)]


PAIRS = [
    *((CONTEXT, choice) for choice in CHOICES),
    *(("", choice) for choice in CHOICES[:2]),
    *((f"{CONTEXT} ", choice) for choice in CHOICES[:3]),
    (LONG, " the end"),
]


@pytest.mark.parametrize("budget", [1, 4096])
def test_likelihoods_and_texts_match_the_hf_backend(
    budget: int, tokenizers: dict[str, TextTokenizer], tmp_path: Path
) -> None:
    from lm_eval.models.huggingface import HFLM

    ours, run = adapter("gqa_1.5B", tokenizers["own"], budget)
    write_model(Model(run.config, checkpointed(weights_of(run.model)), tokenizers["own"]), tmp_path)
    theirs = HFLM(str(tmp_path), device="cpu", dtype="float32", batch_size=3)
    assert theirs.max_length == ours.max_length == 64
    pairs = instances("loglikelihood", PAIRS)
    for (found, greedy), (wanted, their_greedy) in zip(
        ours.loglikelihood(pairs), theirs.loglikelihood(pairs), strict=True
    ):
        assert found == pytest.approx(wanted, abs=1e-4)
        assert greedy == their_greedy
    texts = instances("loglikelihood_rolling", [(text,) for text in (LONG, "x", CONTEXT)])
    assert ours.loglikelihood_rolling(texts) == pytest.approx(theirs.loglikelihood_rolling(texts), abs=1e-3)
    settings = {"until": ["\n\n", "q"], "max_gen_toks": 20, "do_sample": False}
    asked = instances("generate_until", [(text, settings) for text in (CONTEXT, "def main", LONG, "class ")])
    found_texts = ours.generate_until(asked)
    assert found_texts == theirs.generate_until(asked)
    assert all("q" not in text for text in found_texts)


@pytest.mark.parametrize("name", ["nsa_1.5B", "absolute_1.5B", "relative_1.5B"])
def test_a_variant_without_an_export_can_be_evaluated(name: str, tokenizers: dict[str, TextTokenizer]) -> None:
    ours, run = adapter(name, tokenizers["own"], 4096)
    encode = ours.tok_encode
    for (context, end), (found, _) in zip(PAIRS, ours.loglikelihood(instances("loglikelihood", PAIRS)), strict=True):
        blanks = len(context) - len(context.rstrip())
        before = encode(context[: len(context) - blanks]) if context else [tokenizers["own"].eod_id]
        whole = encode(context + end) if context else [*before, *encode(end)]
        tokens = whole[-65:]
        scored = len(whole) - len(before)
        with torch.no_grad():
            table = run.model(torch.tensor([tokens]))[0].double().log_softmax(dim=-1)
        wanted = sum(table[at - 1, tokens[at]].item() for at in range(len(tokens) - scored, len(tokens)))
        assert found == pytest.approx(wanted, abs=1e-4)


def test_a_request_longer_than_the_model_is_refused(tokenizers: dict[str, TextTokenizer]) -> None:
    ours, _ = adapter("gqa_1.5B", tokenizers["own"], 4096)
    with pytest.raises(ConfigError, match="an answer has .* tokens, and the model reads 64"):
        ours.loglikelihood(instances("loglikelihood", [("x", LONG)]))
    with pytest.raises(ConfigError, match="asks for 64 new tokens, and the model reads 64"):
        ours.generate_until(instances("generate_until", [("x", {"max_gen_toks": 64})]))


def test_repeated_samples_are_drawn_one_by_one(tokenizers: dict[str, TextTokenizer]) -> None:
    ours, _ = adapter("gqa_1.5B", tokenizers["own"], 4096)
    asked = instances("generate_until", [(CONTEXT, {"max_gen_toks": 8, "temperature": 1.0, "until": []})] * 12)
    texts = {}
    for ours.batch in (2, 5):
        texts[ours.batch] = ours.generate_until(asked)
    assert len(set(texts[2])) > 8
    assert texts[2] == texts[5]


def test_progress_counts_requests(tokenizers: dict[str, TextTokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "LINE_INTERVAL_S", 0.0)
    ours, _ = adapter("gqa_1.5B", tokenizers["own"], 1)
    for asked, call in (
        (instances("loglikelihood", PAIRS), ours.loglikelihood),
        (instances("generate_until", [("x", {"max_gen_toks": 2, "until": []})] * 5), ours.generate_until),
    ):
        shown = io.StringIO()
        ours.console = Console(file=shown, soft_wrap=True)
        call(asked)
        lines = shown.getvalue().splitlines()
        assert len(lines) > 2
        assert lines[-1] == f"requests of lm-eval: {len(asked)} of {len(asked)} items, 0:00:00 left"


@pytest.mark.parametrize("context", ["", "import os path while the model "])
def test_a_context_shared_by_all_items_does_not_make_one_batch(
    context: str, tokenizers: dict[str, TextTokenizer]
) -> None:
    ours, run = adapter("gqa_1.5B", tokenizers["own"], 512)
    sizes: list[int] = []
    hook = run.model.register_forward_pre_hook(lambda module, given: sizes.append(given[0].numel()))
    found = ours.loglikelihood(instances("loglikelihood", [(context, f" reads {number}") for number in range(200)]))
    hook.remove()
    assert len(found) == 200
    assert context == "" or len(ours.tok_encode(context)) > SHORTEST_SHARED
    # Sequences are filled up by an eighth at most.
    assert max(sizes) <= 512 * 9 / 8


def test_texts_are_stored_as_soon_as_they_are_generated(
    tokenizers: dict[str, TextTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval.api.model import CacheHook, hash_args

    ours, _ = adapter("gqa_1.5B", tokenizers["own"], 1)
    kept: dict[str, float] = {}
    ours.cache_hook = CacheHook(None)
    ours.cache_hook.dbdict = kept
    texts = instances("loglikelihood_rolling", [(LONG,), ("x",), (CONTEXT,)])
    keys = [hash_args("loglikelihood_rolling", text.args) for text in texts]
    whole = ours.loglikelihood_rolling(texts)
    assert [kept[key] for key in keys] == whole
    kept.clear()
    scored = ours.scorer.score

    def killed(groups: Sequence[Group]) -> Iterator[list[tuple[int, list[Scored]]]]:
        yield from itertools.islice(scored(groups), 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(ours.scorer, "score", killed)
    with pytest.raises(KeyboardInterrupt):
        ours.loglikelihood_rolling(texts)
    assert kept[keys[1]] == whole[1]
    assert keys[0] not in kept
