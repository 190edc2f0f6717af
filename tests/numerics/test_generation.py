"""Continuations of prompts: transformers' greedy ones, and the same sampled ones in any batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from oracles.oracle import build, relative_error, weights_of
from support.configs import tiny
from support.exported import checkpointed

from efficientbench.basics.errors import ConfigError, GenerationError
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.export.hugging_face import Model, write_model
from efficientbench.generation.calls import Calculator
from efficientbench.generation.generate import check_lengths, generate
from efficientbench.generation.sampling import Sampling, distribution, uniform

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT

pytestmark = pytest.mark.usefixtures("single_rank")

EXPORTED = ("gqa_1.5B", "mla_1.5B", "mqa_1.5B", "moe_1.5Bx8", "none_1.5B")
LENGTHS = (1, 4, 9, 17, 30)


def config_of(name: str, *overrides: str) -> RunConfig:
    # With one table for both, a random model goes on with the token that it was given.
    return tiny(name, "model.vocab_size=301", "model.init_std=0.2", "model.tied=false", *overrides)


def prompts_of(config: RunConfig, lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(config.model.vocab_size, (length,), generator=generator).tolist() for length in lengths]


def continued(
    model: GPT, prompts: Sequence[Sequence[int]], sampling: Sampling, new: int, **settings: int
) -> list[list[int]]:
    """The new tokens of each row, in the order of prompts and samples."""
    found: dict[tuple[int, int], list[int]] = {}
    for emitted in generate(model, prompts, sampling, new, **settings):  # type: ignore[arg-type]
        for each in emitted:
            tokens = found.setdefault((each.row.prompt, each.row.sample), [])
            assert len(tokens) == each.step
            tokens.append(each.token)
    return [tokens for _, tokens in sorted(found.items())]


@pytest.mark.parametrize(
    ("name", "new"),
    [("gqa_1.5B", 12), *(pytest.param(name, 64, marks=pytest.mark.proof) for name in EXPORTED)],
)
def test_greedy_tokens_match_transformers(
    name: str, new: int, tokenizers: dict[str, TextTokenizer], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    config = config_of(name)
    model = build(config).eval()
    write_model(Model(config, checkpointed(weights_of(model)), tokenizers["own"]), tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    loaded.generation_config.eos_token_id = None
    prompts = prompts_of(config)
    for prompt, ours in zip(prompts, continued(model, prompts, Sampling(), new), strict=True):
        given = torch.tensor([prompt])
        theirs = loaded.generate(given, max_new_tokens=new, do_sample=False)[0, len(prompt) :].tolist()
        assert len(ours) == new
        assert len(set(theirs)) >= new // 4
        if ours != theirs:
            # From where two tokens are equally likely, each goes its own way.
            step = next(index for index in range(new) if ours[index] != theirs[index])
            tokens = torch.tensor([prompt + theirs[:step]])
            with torch.no_grad():
                wanted, found = loaded(tokens).logits[0, -1], model(tokens)[0, -1]
            first, second = wanted.topk(2).values.tolist()
            assert first - second < 1e-4, f"new token {step}"
            assert relative_error(found, wanted) < 1e-5


@pytest.mark.parametrize("name", ["gqa_1.5B", "moe_1.5Bx8", "learnable_absolute_1.5B"])
def test_a_checkpoint_sets_every_weight_of_the_model(name: str) -> None:
    from efficientbench.model.gpt import trained_model

    config = config_of(name)
    original = build(config)
    weights = checkpointed(weights_of(original), padding=0)
    found = trained_model(config, torch.device("cpu"), weights)
    assert not found.training
    for name, parameter in original.named_parameters():
        assert torch.equal(found.get_parameter(name), parameter)
    lost = sorted(weights)[3]
    with pytest.raises(ConfigError, match=f"the checkpoint lacks {lost}"):
        trained_model(config, torch.device("cpu"), {each: weights[each] for each in weights if each != lost})
    with pytest.raises(ConfigError, match="has the shape"):
        trained_model(config, torch.device("cpu"), {**weights, lost: weights[lost][1:]})


@pytest.mark.parametrize(
    ("name", "settings", "new"),
    [
        ("gqa_1.5B", Sampling(1.0, top_k=20, seed=5), 8),
        *(
            pytest.param(name, settings, 32, marks=pytest.mark.proof)
            for name, settings in (
                ("gqa_1.5B", Sampling(1.0, top_k=20, seed=5)),
                ("gqa_1.5B", Sampling(0.7, top_p=0.9, seed=5)),
                ("nsa_1.5B", Sampling(1.0, top_k=20, seed=5)),
            )
        ),
    ],
)
def test_sampled_tokens_are_the_same_in_any_batch(name: str, settings: Sampling, new: int) -> None:
    config = config_of(name, "training.seq_len=96")
    model = build(config).eval()
    prompts = prompts_of(config)
    alone = continued(model, prompts, settings, new, batch=1)
    assert len({tuple(tokens) for tokens in alone}) == len(prompts)
    for batch in (2, 5):
        together = continued(model, prompts, settings, new, batch=batch)
        for number, (one, other) in enumerate(zip(alone, together, strict=True)):
            if one != other:
                step = next(index for index in range(new) if one[index] != other[index])
                with torch.no_grad():
                    logits = model(torch.tensor([prompts[number] + one[:step]]))[0, -1]
                values, tokens = logits.topk(settings.candidates(len(logits)))
                _, cumulative = distribution(values.numpy(), tokens.numpy(), settings)
                # Only a number at a boundary between two tokens may choose either.
                distance = np.abs(cumulative - uniform(settings.seed, number, 0, step)).min()
                assert distance < 1e-5, f"prompt {number}, new token {step}"


def test_samples_of_a_prompt_match_separately_numbered_prompts() -> None:
    config = config_of("gqa_1.5B", "training.seq_len=96")
    model = build(config).eval()
    prompts = prompts_of(config)[:2]
    found = continued(model, prompts, Sampling(1.0, seed=1), 16, samples=3)
    assert len(found) == 6
    assert len({tuple(tokens) for tokens in found}) == 6
    # The first sample is what one alone would be.
    assert found[::3] == continued(model, prompts, Sampling(1.0, seed=1), 16)


def test_sampled_tokens_depend_on_the_number_of_the_prompt() -> None:
    config = config_of("gqa_1.5B", "training.seq_len=96")
    model = build(config).eval()
    prompts = prompts_of(config)
    whole = continued(model, prompts, Sampling(1.0, seed=3), 8)
    emitted = [each for step in generate(model, [prompts[3]], Sampling(1.0, seed=3), 8, numbers=[3]) for each in step]
    assert [each.token for each in emitted] == whole[3] != continued(model, [prompts[3]], Sampling(1.0, seed=3), 8)[0]
    assert {each.row.prompt for each in emitted} == {3}


def test_a_row_ends_at_a_stop_token_and_other_rows_continue() -> None:
    config = config_of("gqa_1.5B", "training.seq_len=96")
    model = build(config).eval()
    prompts = prompts_of(config)
    whole = continued(model, prompts, Sampling(1.0, seed=2), 24)
    stop = {whole[0][3], whole[1][20], whole[3][10]}
    ended = continued(model, prompts, Sampling(1.0, seed=2), 24, stop=stop)  # type: ignore[arg-type]
    for tokens, cut in zip(whole, ended, strict=True):
        end = next((index for index, token in enumerate(tokens) if token in stop), 23)
        assert cut == tokens[: end + 1]
    assert len(ended[0]) <= 4
    assert model.cache is None


def test_a_row_of_nan_is_named() -> None:
    model = build(config_of("gqa_1.5B")).eval()
    next(model.parameters()).data[7] = torch.nan
    with pytest.raises(GenerationError, match="prompt 2, new token 1: the largest logit is nan"):
        list(generate(model, [[3, 4], [5, 7]], Sampling(), 4))
    assert model.cache is None


@pytest.mark.parametrize(
    ("length", "remedy"), [(70, "give at most 63 tokens"), (40, "--max-new-tokens 24 would fit"), (32, None)]
)
def test_more_tokens_than_positions_are_refused(length: int, remedy: str | None) -> None:
    model = config_of("learnable_absolute_1.5B", "model.position.max_seq_len=64").model
    prompts = [[1], [2] * length]
    if remedy is None:
        check_lengths(model, prompts, 32)
        return
    with pytest.raises(ConfigError, match=rf"prompt 2 has {length} tokens.*the model has 64 positions.*{remedy}"):
        check_lengths(model, prompts, 32)
    check_lengths(config_of("gqa_1.5B").model, prompts, 32)


def test_results_of_the_calculator_become_tokens_of_the_row() -> None:
    model = build(config_of("gqa_1.5B", "training.seq_len=96")).eval()
    prompts = prompts_of(config_of("gqa_1.5B"))[2:4]
    plain = continued(model, prompts, Sampling(), 24)
    # Tokens that the model chooses anyway serve as those of a call: the other row may not have them.
    call, end = plain[0][3], plain[0][6]
    assert call != end
    assert not {call, end} & {*plain[0][:3], *plain[0][4:6], *plain[1]}
    result = [5, 11, 12, 6]
    token_ids = {"<|python_start|>": call, "<|python_end|>": end, "<|output_start|>": 5, "<|output_end|>": 6}
    seen: list[list[int]] = []

    def decode(tokens: Sequence[int]) -> str:
        seen.append(list(tokens))
        return "6*7"

    calculator = Calculator(token_ids, lambda text: np.array([{"4": 11, "2": 12}[each] for each in text]), decode)
    emitted = [each for step in generate(model, prompts, Sampling(), 24, calculator=calculator) for each in step]
    row, other = ([each for each in emitted if each.row.prompt == number] for number in (0, 1))
    tokens = [each.token for each in row]
    assert seen[0] == plain[0][4:6]
    assert tokens[:11] == plain[0][:7] + result
    assert [each.step for each in row if each.forced][:4] == [7, 8, 9, 10]
    # Behind it the row goes on as a prompt that holds the result.
    assert tokens[11] == continued(model, [prompts[0] + tokens[:11]], Sampling(), 1)[0][0]
    assert [each.token for each in other] == plain[1]
    assert not any(each.forced for each in other)
