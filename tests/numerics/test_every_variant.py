"""What holds for every architecture of the matrix: causality, and the figures of the cost formulas."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from oracles.oracle import attention_oracle, build, dense_attention, relative_error, text
from support.configs import MODELS, is_plain, tiny, tiny_model
from support.learning import learn
from support.proofs import proofs_but
from torch.utils.flop_counter import FlopCounterMode

from efficientbench.architecture.backbone import CHOICES
from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.registry import ATTENTION
from efficientbench.config.load import resolve
from efficientbench.config.matrix import by_name, load_matrix
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import count_parameters, flops_per_token, keys_read_per_query

pytestmark = pytest.mark.usefixtures("single_rank")

MORE = {
    "mla, norms without weights": ("mla_1.5B", ("model.norm_weights=false", "model.attention.q_lora_rank=20")),
    "moe, relu2": ("moe_1.5Bx8", ("model.activation=relu2",)),
}


@functools.cache
def configuration(model: str) -> RunConfig:
    if model in MODELS:
        return tiny_model(model, "model.init_std=0.2")
    run, overrides = MORE[model]
    return tiny(run, "model.init_std=0.2", *overrides)


def structure(model: ModelConfig) -> tuple[object, ...]:
    """Return what makes a model another architecture, whatever its sizes."""
    shared = {1: "one for all", model.heads: "each has its own"}.get(model.key_value_heads, "groups")
    choices = {key: getattr(model, key) for key in CHOICES if key != "logit_softcap"}
    return model.attention.kind, model.position.kind, shared, model.moe is not None, *choices.items()


def test_every_architecture_is_tested() -> None:
    covered = {structure(configuration(name).model) for name in MODELS}
    for run in load_matrix().runs:
        assert structure(resolve(run.name).model) in covered, run.name


@pytest.mark.parametrize("position", [9, *(pytest.param(each, marks=pytest.mark.proof) for each in (1, 15))])
@pytest.mark.parametrize("variant", [*MODELS, *MORE])
def test_a_changed_token_does_not_change_earlier_logits(variant: str, position: int) -> None:
    config = configuration(variant)
    model, tokens = build(config).eval(), text(config, config.training.seq_len)
    changed = tokens.clone()
    changed[:, position] = (changed[:, position] + 1) % config.model.vocab_size
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    if config.model.moe or not is_plain(config):
        # A matmul of an expert, or of a block of queries, has other rows beside a token's.
        assert relative_error(after[:, :position], before[:, :position]) < 1e-6
    else:
        assert torch.equal(after[:, :position], before[:, :position])
    window = getattr(config.model.attention, "window", None) if config.model.attention.kind == "gqa" else None
    # Each layer passes a token's change to the queries whose windows hold it.
    end = None if window is None else position + config.model.layers * (window - 1) + 1
    if keys_read_per_query(config.model, config.training.seq_len) == 0:
        # A state fades until its rest is rounded away.
        end = position + 1
    assert (before[:, position:end] != after[:, position:end]).any(dim=2).all()


@pytest.mark.parametrize("variant", [*MODELS, *MORE])
def test_the_number_of_parameters_matches_the_formula(variant: str) -> None:
    config = configuration(variant)
    assert sum(parameter.numel() for parameter in build(config).parameters()) == count_parameters(config.model).total


# Of chat.yaml one run: the others differ from it in shapes alone.
SMOKE = [*by_name(run for run in load_matrix().all_runs if run.suite != "chat"), "base_d20"]


@pytest.mark.parametrize("run", proofs_but([run for run in SMOKE if "1.5B" in run], SMOKE))
def test_the_number_of_parameters_of_smoke_models_matches_the_formula(run: str) -> None:
    config = resolve(run, smoke=True)
    assert sum(parameter.numel() for parameter in build(config).parameters()) == count_parameters(config.model).total


@pytest.mark.proof
@pytest.mark.parametrize("run", SMOKE)
def test_smoke_models_learn(run: str) -> None:
    """Some learn a real text as well, in tests/distributed/test_smoke_runs.py."""
    config = resolve(run, smoke=True)
    tokens = text(config, config.training.seq_len + 1)
    learn(build(config), config, tokens, torch.ones_like(tokens), steps=30, below=math.log(config.model.vocab_size) - 1)


@pytest.mark.parametrize("variant", proofs_but(["nsa", "mla", "moe"], [*MODELS, *MORE]))
def test_each_module_with_weights_is_called(variant: str) -> None:
    """Megatron waits for weights that it gathers meanwhile where their own module is called."""
    config = configuration(variant)
    model, called = build(config), set()
    with_weights = {name: module for name, module in model.named_modules() if list(module.parameters(recurse=False))}
    for name, module in with_weights.items():
        module.register_forward_pre_hook(lambda *_, name=name: called.add(name))
    model(text(config, config.training.seq_len))
    assert called == with_weights.keys()


@pytest.mark.parametrize("variant", [*MODELS, *MORE])
def test_flops_match_torchs_counter(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The counter sees matmuls only: neither the CPU's fused attention nor grouped ones.
    monkeypatch.setattr("efficientbench.model.gpt.causal_attention", dense_attention)
    monkeypatch.setattr("efficientbench.model.kernels.grouped_mm.has_grouped_mm", lambda device_type: False)
    for kind in ATTENTION:
        for kernel, eager in getattr(attention_oracle(kind), "EAGER", {}).items():
            monkeypatch.setattr(kernel, eager)
    config = configuration(variant)
    tokens = text(config, config.training.seq_len)
    model = build(config)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(tokens)
    flops = flops_per_token(config.model, config.training.seq_len)
    assert flops.forward_full_square * tokens.numel() == counter.get_total_flops()
    # What reads no keys hides none.
    hides = keys_read_per_query(config.model, config.training.seq_len) > 0
    assert (flops.forward < flops.forward_full_square) == hides
