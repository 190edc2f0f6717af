"""The runs of a pipeline are those of chat.yaml, in any depth, architecture and vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest

from efficientbench.basics.errors import ConfigError
from efficientbench.config.depths import shapes, smoke_size
from efficientbench.config.load import resolve
from efficientbench.config.matrix import CHAT, MATRIX, Matrix, load_matrix, load_yaml
from efficientbench.speedrun.recipe import run_name, write_matrix
from efficientbench.speedrun.request import BASE, RL, STAGES, Request


def test_the_rules_of_the_shapes_are_those_of_chat_yaml() -> None:
    for name, layer in load_yaml(CHAT, Matrix).sizes.items():
        rule = shapes(int(name.removeprefix("d")))
        assert {key: layer["model"][key] for key in rule} == rule


@pytest.mark.parametrize("depth", [8, 16])
def test_a_named_depth_has_the_runs_of_chat_yaml(tmp_path: Path, depth: int) -> None:
    file = write_matrix(Request(tmp_path, "cpu", depth=depth), None)
    for stage in STAGES:
        ours, shipped = resolve(f"{stage}_d{depth}", matrix_file=file), resolve(f"{stage}_d{depth}")
        for part in ("name", "model", "training", "data", "rl", "checkpoint"):
            assert getattr(ours, part) == getattr(shipped, part), (stage, part)


def test_another_depth_follows_the_rules(tmp_path: Path) -> None:
    config = resolve("base_d10", matrix_file=write_matrix(Request(tmp_path, "cpu", depth=10, vocabulary=999), None))
    model, training = config.model, config.training
    assert (model.layers, model.hidden_size, model.heads, model.head_dim) == (10, 640, 5, 128)
    assert (model.ffn_hidden_size, model.vocab_size) == (1792, 999)
    # Between those of d8 and d12; 20 tokens for each parameter.
    assert (training.learning_rate, training.min_learning_rate) == (7.2e-4, 7.2e-5)
    assert (training.tokens, training.steps) == ("20x", None)


@pytest.mark.parametrize("stage", STAGES)
def test_a_depth_that_no_file_names_is_that_of_a_speedrun(tmp_path: Path, stage: str) -> None:
    file = write_matrix(Request(tmp_path, "cpu", depth=26), None)
    ours, speedruns = (resolve(f"{stage}_d26", matrix_file=each) for each in (MATRIX, file))
    assert (ours.model, ours.training, ours.rl) == (speedruns.model, speedruns.training, speedruns.rl)
    assert resolve(f"{stage}_d26", smoke=True).model.layers == 4


def test_smoke_runs_of_other_depths_follow_the_rule_of_those_named() -> None:
    matrix = load_yaml(CHAT, Matrix)
    for name, layer in matrix.smoke.sizes.items():
        rule = smoke_size(matrix.sizes[name])["model"]
        assert {key: rule[key] for key in layer["model"]} == layer["model"]


@pytest.mark.parametrize(("variant", "layer"), load_matrix().variants.items())
def test_every_variant_goes_through_all_stages(tmp_path: Path, variant: str, layer: dict) -> None:
    # Its pattern must fit into the depth, whose heads share its two groups.
    depth = 8 if len(layer.get("model", {}).get("pattern", ())) > 4 else 4
    request = Request(tmp_path, "cpu", depth=depth, short=True, stages=STAGES)
    file = write_matrix(request, variant)
    first, last = (resolve(run_name(stage, variant, depth), matrix_file=file) for stage in (BASE, RL))
    assert first.model == last.model
    for section in ("attention", "position"):
        kind = layer.get("model", {}).get(section, {}).get("kind")
        assert kind in (None, getattr(first.model, section).kind)
    assert (first.model.moe is None) == ("moe" not in layer.get("model", {}))
    for config, objective in ((first, "pretrain"), (last, "rl")):
        assert config.training.objective == objective
        assert config.training.steps is not None
        assert config.training.steps >= 50
    for stage in STAGES:
        by_muon = resolve(run_name(stage, variant, depth), overrides=["training.optimizer=muon"], matrix_file=file)
        assert (by_muon.training.matrix_rate, by_muon.parallel.distributed_optimizer) == (0.02, False)


def test_an_unknown_variant_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--variant: there is no variant called 'mla2': did you mean mla"):
        write_matrix(Request(tmp_path, "cpu"), "mla2")
