"""What holds for every architecture of the matrix: causality, and the figures of the cost formulas."""

from __future__ import annotations

import pytest
import torch
from oracles.nsa import eager_range_attention, eager_selected_attention
from oracles.oracle import build, dense_attention, relative_error, text
from support.configs import BACKBONE, tiny
from torch.utils.flop_counter import FlopCounterMode

from efficientbench.config.load import resolve
from efficientbench.config.matrix import load_matrix
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import count_parameters, flops_per_token

pytestmark = pytest.mark.usefixtures("single_rank")

OVERRIDES = {
    "gqa_1.5B": [],
    "mqa_1.5B": [],
    "mla_1.5B": [],
    "mla_1.5B, compressed queries": ["model.attention.q_lora_rank=20"],
    "nsa_1.5B": [],
    "absolute_1.5B": [],
    "learnable_absolute_1.5B": ["model.position.max_seq_len=20"],
    "relative_1.5B": ["model.position.buckets=8", "model.position.max_distance=12"],
    "none_1.5B": [],
    "moe_1.5Bx8": [],
    # No runs of the matrix: rows that its schema allows.
    "gqa_1.5B, alibi": ["model.position.kind=alibi"],
    "nanochat_d12": [],
    "gqa_1.5B, the backbone's keys": BACKBONE,
    "mla_1.5B, norms without weights": ["model.norm_weights=false", "model.attention.q_lora_rank=20"],
    "moe_1.5Bx8, relu2": ["model.activation=relu2"],
}
# Not bit for bit: a matmul of an expert, or of a block of queries, has other rows beside a token's.
BY_ROUNDING = ("nsa_1.5B", "moe_1.5Bx8")


def configuration(variant: str) -> RunConfig:
    return tiny(variant.partition(",")[0], "model.init_std=0.2", *OVERRIDES[variant])


def test_no_architecture_is_left_out() -> None:
    covered = {name.partition(",")[0].rpartition("_")[0] for name in OVERRIDES}
    models = {run.name: resolve(run.name).model for run in load_matrix().runs}
    for run in load_matrix().runs:
        # Under any of the names that mean this model.
        assert any(models.get(f"{name}_{run.size}") == models[run.name] for name in covered), run.name


@pytest.mark.parametrize("position", [9, *(pytest.param(each, marks=pytest.mark.proof) for each in (1, 15))])
@pytest.mark.parametrize("variant", OVERRIDES)
def test_a_changed_token_leaves_all_logits_before_it(variant: str, position: int) -> None:
    config = configuration(variant)
    model, tokens = build(config).eval(), text(config, config.training.seq_len)
    changed = tokens.clone()
    changed[:, position] = (changed[:, position] + 1) % config.model.vocab_size
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    if variant.partition(",")[0] in BY_ROUNDING:
        assert relative_error(after[:, :position], before[:, :position]) < 1e-6
    else:
        assert torch.equal(after[:, :position], before[:, :position])
    assert (before[:, position:] != after[:, position:]).any(dim=2).all()


@pytest.mark.parametrize("variant", OVERRIDES)
def test_parameters_are_as_many_as_counted(variant: str) -> None:
    config = configuration(variant)
    assert sum(parameter.numel() for parameter in build(config).parameters()) == count_parameters(config.model).total


# Of chat.yaml one run: the others differ from it in shapes alone.
@pytest.mark.parametrize("run", [run.name for run in load_matrix().all_runs if run.suite != "chat"] + ["base_d20"])
def test_parameters_of_the_smoke_models_are_as_many_as_counted(run: str) -> None:
    config = resolve(run, smoke=True)
    assert sum(parameter.numel() for parameter in build(config).parameters()) == count_parameters(config.model).total


@pytest.mark.parametrize("variant", OVERRIDES)
def test_flops_equal_those_that_torch_counts(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from efficientbench.model import gpt
    from efficientbench.model.attention import gqa, nsa
    from efficientbench.model.kernels import grouped_mm

    # The counter sees matmuls only: neither the CPU's fused attention nor grouped ones.
    monkeypatch.setattr(gpt, "causal_attention", dense_attention)
    monkeypatch.setattr(gqa, "biased_causal_attention", dense_attention)
    monkeypatch.setattr(nsa, "range_attention", eager_range_attention)
    monkeypatch.setattr(nsa, "selected_attention", eager_selected_attention)
    monkeypatch.setattr(grouped_mm, "has_grouped_mm", lambda device_type: False)
    config = configuration(variant)
    tokens = text(config, config.training.seq_len)
    model = build(config)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(tokens)
    flops = flops_per_token(config.model, config.training.seq_len)
    assert flops.forward_full_square * tokens.numel() == counter.get_total_flops()
    assert flops.forward < flops.forward_full_square
