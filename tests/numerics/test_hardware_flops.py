"""FLOPs of a training step by formula, as counted where torch dispatches the CPU's kernels, and its longest chain."""

from __future__ import annotations

import pytest
import torch
from oracles.oracle import attention_oracle, build, text
from support.configs import ATTENTIONS, chosen, is_plain, tiny_model
from support.longest_chain import longest_chain
from torch.utils.flop_counter import FlopCounterMode

from efficientbench.architecture.registry import ATTENTION
from efficientbench.config.schema import RunConfig
from efficientbench.costs.compute import AttentionWork, hardware_flops_per_token
from efficientbench.costs.model import flops_per_token
from efficientbench.doctor.variant.model import FlopCounter, UncountedError
from efficientbench.model.kernels.names import attention_work

pytestmark = pytest.mark.usefixtures("single_rank")


def counted_per_token(config: RunConfig) -> float:
    """FLOPs per token of a forward and a backward pass of the model, with the kernels of a run on the CPU."""
    from efficientbench.training.update.optimizer import wrap_data_parallel

    model = wrap_data_parallel(build(config), config)
    sequence = text(config, config.training.seq_len + 1)
    tokens, labels = sequence[:, :-1], sequence[:, 1:]
    with FlopCounter() as counter:
        model(tokens, labels, torch.ones_like(labels)).backward()
    return counter.total / tokens.numel()


def by_formula(config: RunConfig) -> int:
    training = config.training
    work = attention_work(config, "cpu")
    return hardware_flops_per_token(config.model, training.seq_len, training.recompute, lambda view: work)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", [*chosen(ATTENTIONS, is_plain), "moe", "none"])
def test_hardware_flops_match_the_kernels(name: str, recompute: str) -> None:
    config = tiny_model(name, f"training.recompute={recompute}")
    counted = counted_per_token(config)
    assert counted == by_formula(config)
    flops = flops_per_token(config.model, config.training.seq_len, config.training.recompute)
    # Without the scores computed again, and MLA's padded values, a part of the work would be missing.
    assert counted > flops.training_hardware


@pytest.mark.parametrize(
    "name", chosen(ATTENTIONS, lambda config: config.model.attention_variant.kernels and not is_plain(config))
)
def test_a_variants_own_kernels_compute_at_least_the_model_flops(name: str) -> None:
    """NSA reads complete blocks, and selects in two passes."""
    config = tiny_model(name)
    flops = flops_per_token(config.model, config.training.seq_len)
    # Tiles that are not full come on top.
    assert flops.training_hardware < by_formula(config) <= counted_per_token(config)


def test_a_kernel_that_stores_its_scores_computes_exactly_the_model_flops() -> None:
    config = tiny_model("gqa")
    flops = flops_per_token(config.model, 16)
    assert (
        hardware_flops_per_token(config.model, 16, "none", lambda view: AttentionWork(scores_again=False))
        == flops.training
    )


@pytest.mark.parametrize("kind", [kind for kind, variant in ATTENTION.items() if variant.places == {"nothing"}])
def test_few_operations_of_a_recurrent_layer_follow_one_another(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sixteenth of the tokens at most; of the recurrence as a loop over tokens it is several for each."""
    config = tiny_model(kind)
    layer = build(config).decoder.layers[0].self_attention

    def for_each_token(tokens: int) -> float:
        return longest_chain(layer(torch.ones(tokens, 1, config.model.hidden_size))[0]) / tokens

    assert for_each_token(4096) <= 1 / 16
    for place, loop in attention_oracle(kind).EAGER.items():  # type: ignore[attr-defined]
        monkeypatch.setattr(place, loop)
    assert for_each_token(256) > 1


def test_torchs_counter_misses_products() -> None:
    total, left = torch.zeros(4, 8), torch.ones(4, 16)
    with FlopCounterMode(display=False) as torchs, FlopCounter() as ours:
        total.addmm_(left, torch.ones(16, 8))
    # Were it to count them one day, the tests could rest on it.
    assert (torchs.get_total_flops(), ours.total) == (0, 2 * 4 * 16 * 8)


def test_a_product_without_a_formula_is_reported() -> None:
    with pytest.raises(UncountedError, match="no formula counts its FLOPs"), FlopCounter():
        torch.nn.functional.conv1d(torch.ones(1, 1, 4), torch.ones(1, 1, 2))
