"""Muon's direction against singular values and torch's Muon, and its steps against what they must leave alone."""

from __future__ import annotations

import math
import re
import weakref
from typing import Any

import pytest
import torch
from oracles.optimizers import orthogonal
from support.configs import ATTENTIONS, MODELS, chosen, has_matrices, tiny, tiny_model
from support.releases import TORCH_MUON
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from efficientbench.architecture.variant import Stack
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.costs.matrices import layer_matrices, muon_bytes, muon_flops, rank_matrices

CPU = torch.device("cpu")
MUON = "training.optimizer=muon"


def configured(model: str, *overrides: str) -> RunConfig:
    return tiny_model(model, MUON, *overrides)


def built(config: RunConfig) -> tuple[Any, Any]:
    """Return the only stage of a model on one rank, and its optimizer."""
    from efficientbench.model.gpt import build_stages
    from efficientbench.training.update.optimizer import build_optimizer, wrap_data_parallel

    [stage] = [wrap_data_parallel(stage, config) for stage in build_stages(config, CPU)]
    return stage, build_optimizer([stage], config)


@pytest.mark.parametrize("shape", [(1, 40, 40), (1, 24, 100), (3, 100, 24), (1, 1, 7), (1, 64, 3)])
def test_the_iteration_equals_its_polynomial_on_the_singular_values(shape: tuple[int, ...]) -> None:
    from efficientbench.training.update.muon import direction, orthogonalized

    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([orthogonal(each.double()) for each in matrices])
    found = direction(matrices, [shape[1]])
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    # Each matrix alone, whatever the size of the others.
    scaled = matrices * torch.logspace(-6, 6, shape[0])[:, None, None]
    torch.testing.assert_close(orthogonalized(scaled), orthogonalized(matrices), rtol=0, atol=1e-5)


def test_a_gradient_of_zero_gives_a_zero_direction() -> None:
    from efficientbench.training.update.muon import orthogonalized

    assert not orthogonalized(torch.zeros(1, 6, 4)).any()


def test_each_part_of_a_fused_weight_is_orthogonalized_separately() -> None:
    """The fused weight has two groups of three query heads, a key and a value, with five rows for each head."""
    from efficientbench.training.update.muon import direction

    fused = torch.randn(1, 2 * 5 * 5, 9, generator=torch.Generator().manual_seed(0))
    heads = fused.view(2, 5, 5, 9)
    found = direction(fused, [15, 5, 5]).view(2, 5, 5, 9)
    for part in (slice(0, 3), slice(3, 4), slice(4, 5)):
        expected = orthogonal(heads[:, part].reshape(-1, 9).double())
        torch.testing.assert_close(found[:, part].reshape(-1, 9), expected.float(), rtol=0, atol=1e-5)


@TORCH_MUON
def test_steps_match_torchs_muon_in_bf16() -> None:
    from efficientbench.training.update.muon import Matrices, Muon, momentum

    ours, theirs = (torch.nn.Parameter(torch.randn(30, 20, generator=torch.Generator().manual_seed(1))) for _ in "ab")
    matrices = Matrices(ours, (30,), None, torch.bfloat16)
    muon = Muon([{"params": [ours], "matrices": [matrices], "lr": 0.02, "weight_decay": 0.1}])
    other = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, momentum=momentum(1))
    for seed in range(3):
        before = theirs.detach().clone()
        ours.grad = theirs.grad = torch.randn(30, 20, generator=torch.Generator().manual_seed(seed))
        muon.step()
        other.step()
        # bf16 rounds in another order.
        assert (ours - theirs).norm() < 0.02 * (theirs - before).norm()
        ours.data.copy_(theirs.data)


def test_the_momentum_rises_to_its_final_value() -> None:
    from efficientbench.training.update.muon import momentum

    assert [momentum(step) for step in (1, 151, 301, 10_000)] == pytest.approx([0.85, 0.9, 0.95, 0.95])


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("model", chosen(MODELS, has_matrices))
def test_declared_matrices_match_those_of_the_layers(model: str) -> None:
    """They match by name and shape, and together with AdamW's parameters they are all parameters."""
    from efficientbench.model.initial_weights import global_parameters
    from efficientbench.training.update.parameter_roles import role_names

    config = configured(model)
    stage, optimizer = built(config)
    names, views = role_names([stage]), config.model.views
    matrices = {kind: layer_matrices(view) for kind, view in views.items()}
    declared = matrices[config.model.layer_kinds[1]]
    assert names["matrices"] == sorted({f"decoder.layers.*.{name}" for each in matrices.values() for name in each})
    assert not [
        name
        for name in names.get("others", [])
        if re.search("linear|weight_in|weight_out", name) and "bias" not in name
    ]
    for name, parameter in global_parameters(stage.module).items():
        if name.startswith("decoder.layers.1.") and (stack := declared.get(name.removeprefix("decoder.layers.1."))):
            rows = sum(height * stack.repeats for height in stack.heights)
            assert tuple(parameter.shape) == (stack.copies, rows, stack.inputs)[-parameter.dim() :], name
    by_muon = {each for group in optimizer.chained_optimizers[1].param_groups for each in group["params"]}
    by_adamw = {each for group in optimizer.chained_optimizers[0].param_groups for each in group["params"]}
    assert by_muon.isdisjoint(by_adamw)
    assert by_muon | by_adamw == set(stage.parameters())
    assert rank_matrices(config, Layout.of(config, 1)) == sum(each.numel() for each in by_muon)


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("model", [*chosen(ATTENTIONS, has_matrices), "moe"])
def test_the_flops_of_muon_match_torchs_counter(model: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    config = configured(model)
    _, optimizer = built(config)
    muon = optimizer.chained_optimizers[1].optimizer
    for group in muon.param_groups:
        for weight in group["params"]:
            weight.grad = torch.ones_like(weight)
    with FlopCounterMode(display=False) as counter:
        muon.step()
    assert counter.get_total_flops() == muon_flops(config, Layout.of(config, 1))


class Allocated(TorchDispatchMode):
    """Counts the bytes of the storages that operations have made and that still live."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {each.untyped_storage()._cdata for each in tree_leaves(args) if isinstance(each, torch.Tensor)}
        output = func(*args, **(kwargs or {}))
        for each in tree_leaves(output):
            if isinstance(each, torch.Tensor) and (key := each.untyped_storage()._cdata) not in {*given, *self.live}:
                self.live[key] = each.untyped_storage().nbytes()
                weakref.finalize(each.untyped_storage(), self.live.pop, key, None)
        self.peak = max(self.peak, sum(self.live.values()))
        return output


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["gqa", "moe"])
def test_the_temporary_tensors_of_muon_match_the_plan(name: str, dtype: str) -> None:
    # As wide as real layers are in proportion to their inner width.
    config = configured(name, f"training.dtype={dtype}", "model.ffn_hidden_size=280")
    _, optimizer = built(config)
    muon = optimizer.chained_optimizers[1].optimizer
    muon.found_inf, muon.grad_scale = torch.zeros(()), torch.ones(())
    for _ in range(2):
        for group in muon.param_groups:
            for weight in group["params"]:
                weight.grad = torch.ones_like(weight)
        with Allocated() as allocated:
            muon.step()
    planned = muon_bytes(config, Layout.of(config, 1))
    assert 0.85 * planned < allocated.peak < 1.1 * planned


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_non_finite_step_changes_nothing_and_clipping_scales_the_gradient(dtype: str) -> None:
    from efficientbench.training.update.muon import set_momentum
    from efficientbench.training.update.optimizer import QueuedUpdate, can_queue, set_rates

    config = configured("gqa", f"training.dtype={dtype}", "training.gradient_clip=1")
    stage, optimizer = built(config)
    assert can_queue(optimizer, CPU)
    queued, muon = QueuedUpdate(optimizer, CPU), optimizer.chained_optimizers[1].optimizer

    def update(gradient: float, skip: float) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        for parameter in stage.parameters():
            parameter.main_grad.fill_(gradient)
        set_rates(optimizer, 1e-3, 0.1)
        set_momentum(optimizer, 1)
        queued.update(queued.norm(), torch.tensor(skip))
        return [each.detach().clone() for each in stage.parameters()], [
            state["momentum"].clone() for state in muon.state.values()
        ]

    weights, momenta = update(2.0, 0.0)
    count = sum(each.numel() for each in stage.parameters())
    # The norm of all gradients is clipped to 1.
    assert momenta[0].flatten()[0].item() == pytest.approx(0.15 / math.sqrt(count), rel=1e-4)
    for before, after in zip((weights, momenta), update(math.nan, 1.0), strict=True):
        assert all(map(torch.equal, before, after))
    assert not any(map(torch.equal, momenta, update(1.0, 0.0)[1]))


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("optimizer_name", ["adamw", "muon"])
def test_each_parameter_role_has_its_learning_rate(optimizer_name: str) -> None:
    from efficientbench.model.initial_weights import global_parameters
    from efficientbench.training.update.optimizer import set_rates
    from efficientbench.training.update.parameter_roles import parameter_roles
    from efficientbench.worker.build_record import parameter_groups

    rates = {"matrices": 0.04, "embedding": 0.2, "head": 0.004, "others": 0.001}
    keys = {"matrices": "matrix_learning_rate", "embedding": "embedding_learning_rate", "head": "head_learning_rate"}
    config = tiny(
        "nanochat_d12",
        f"training.optimizer={optimizer_name}",
        "model.norm_weights=true",
        "parallel.distributed_optimizer=false",
        "training.learning_rate=0.001",
        *(f"training.{key}={rates[role]}" for role, key in keys.items()),
    )
    stage, optimizer = built(config)
    # Half way down from the peak, all are.
    set_rates(optimizer, 0.0005, 0.1)
    found = {
        parameter: group["lr"]
        for part in optimizer.chained_optimizers
        for group in part.param_groups
        for parameter in group["params"]
    }
    roles = parameter_roles([stage])
    assert {role: found[parameter] for parameter, role in roles.items()} == pytest.approx(
        {role: rate / 2 for role, rate in rates.items()}
    )
    names = {
        role: [name for name, each in global_parameters(stage.module).items() if roles[each] == role] for role in rates
    }
    groups = parameter_groups(config.training, [{"embedding": names["embedding"]}, names])
    assert [(group.role, group.learning_rate) for group in groups] == list(rates.items())
    assert [group.optimizer for group in groups] == [optimizer_name, "adamw", "adamw", "adamw"]
    assert groups[1].parameters == ["embedding.word_embeddings.weight"]


def test_an_undeclared_weight_is_named() -> None:
    from efficientbench.basics.errors import ConfigError
    from efficientbench.training.update.muon import Matrices

    weight = torch.nn.Parameter(torch.ones(2, 2))
    with pytest.raises(ConfigError, match=r"matrices of decoder.layers.0.self_attention.other.weight: attention 'gqa'"):
        Matrices.of("decoder.layers.0.self_attention.other.weight", weight, tiny("gqa_1.5B").model, torch.float32)


def test_a_stack_counts_its_repeated_matrices() -> None:
    stack = Stack(9, (15, 5, 5), repeats=2, copies=3)
    assert stack.shapes == ((30, 9), (10, 9), (10, 9))
    assert stack.parameters == 3 * 50 * 9
