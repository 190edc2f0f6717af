"""The runs of a pipeline are those of chat.yaml, in any depth, architecture and vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest

from efficientbench.config.errors import ConfigError
from efficientbench.config.load import resolve
from efficientbench.config.matrix import CHAT, Matrix, load_matrix, load_yaml
from efficientbench.stages.recipe import run_name, shapes, write_matrix
from efficientbench.stages.request import STAGES, Request

DEPTHS = [int(name.removeprefix("d")) for name in load_yaml(CHAT, Matrix).sizes]


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_named_depth_has_the_runs_of_chat_yaml(tmp_path: Path, depth: int) -> None:
    file = write_matrix(Request(tmp_path, "cpu", depth=depth), None)
    for stage in STAGES:
        ours, shipped = resolve(f"{stage}_d{depth}", matrix_file=file), resolve(f"{stage}_d{depth}")
        for part in ("name", "model", "training", "data", "rl", "checkpoint"):
            assert getattr(ours, part) == getattr(shipped, part), (stage, part)
    known = load_yaml(CHAT, Matrix).sizes[f"d{depth}"]["model"]
    assert {key: known[key] for key in shapes(depth)} == shapes(depth)


def test_another_depth_follows_the_rules(tmp_path: Path) -> None:
    config = resolve("base_d10", matrix_file=write_matrix(Request(tmp_path, "cpu", depth=10, vocabulary=999), None))
    model, training = config.model, config.training
    assert (model.layers, model.hidden_size, model.heads, model.head_dim) == (10, 640, 5, 128)
    assert (model.ffn_hidden_size, model.vocab_size) == (1792, 999)
    # Between those of d8 and d12; 20 tokens for each parameter.
    assert (training.learning_rate, training.min_learning_rate) == (7.2e-4, 7.2e-5)
    assert (training.tokens, training.steps) == ("20x", None)


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("variant", sorted(load_matrix().variants))
def test_every_variant_goes_through_all_stages(tmp_path: Path, variant: str, short: bool) -> None:
    request = Request(tmp_path, "cpu", variants=(variant,), short=short, stages=STAGES)
    file = write_matrix(request, variant)
    found = [resolve(run_name(stage, variant, request.layers), matrix_file=file) for stage in STAGES]
    assert len({config.name for config in found}) == len(STAGES)
    assert all(config.model == found[0].model for config in found)
    assert [config.training.objective for config in found] == ["pretrain", "pretrain", "sft", "rl"]
    named = resolve(f"{variant}_1.5B").model
    assert (found[0].model.attention.kind, found[0].model.position.kind) == (named.attention.kind, named.position.kind)
    assert (found[0].model.moe is None) == (named.moe is None)
    if short:
        assert all(config.training.steps and config.training.steps >= 50 for config in found)


def test_an_unknown_variant_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--variant: there is no variant called 'mal': did you mean mla"):
        write_matrix(Request(tmp_path, "cpu"), "mal")
