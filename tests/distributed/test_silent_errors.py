"""Wrong numbers without an exception, seen in megatron-core: each has a remedy here, without which a test fails."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from support.cells import Outcome, train, whole_gradients
from support.configs import tiny
from support.ranks import Ranks
from support.tiny_training import Observed, tiny_training

from efficientbench.config.parallel import ParallelConfig
from efficientbench.config.schema import RunConfig


def reduce_transposed() -> tuple[torch.Tensor, torch.Tensor]:
    """A non-contiguous tensor through megatron's own reduction and through the repaired one."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import mappings

    from efficientbench.model import megatron_patches
    from efficientbench.training import groups

    megatron_patches.apply()
    with groups.model_parallel(ParallelConfig(tp=2), seed=0):
        group = parallel_state.get_tensor_model_parallel_group()
        matrix = torch.arange(6.0).view(2, 3)
        return megatron_patches._reduce(matrix.clone().t(), group), mappings._reduce(matrix.clone().t(), group)


def test_a_non_contiguous_tensor_is_reduced(ranks: Callable[[int], Ranks]) -> None:
    twice = 2 * torch.arange(6.0).view(2, 3).t()
    for without_remedy, with_remedy in ranks(2).call(reduce_transposed):
        assert torch.equal(with_remedy, twice)
        assert not torch.equal(without_remedy, twice), "megatron has mended it: the patch can go"


def initial_weights(config: RunConfig) -> dict[str, tuple[torch.Tensor, int | None, int, int]]:
    """This rank's parameters by global name, with what splits them."""
    from megatron.core import parallel_state

    from efficientbench.model.gpt import build_stages
    from efficientbench.model.initial_weights import global_parameters
    from efficientbench.training import groups

    with groups.model_parallel(config.parallel, seed=0):
        rank = parallel_state.get_tensor_model_parallel_rank()
        return {
            name: (
                parameter.detach().clone(),
                parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else None,
                getattr(parameter, "partition_stride", 1),
                rank,
            )
            for name, parameter in global_parameters(build_stages(config, torch.device("cpu"))[0]).items()
        }


@pytest.mark.parametrize("name", ["gqa_1.5B", "mla_1.5B"])
@pytest.mark.parametrize("layout", [["parallel.tp=2"], ["parallel.tp=2", "parallel.sp=true"], ["parallel.pp=2"]])
def test_initial_weights_are_the_same_in_every_layout(
    name: str, layout: list[str], ranks: Callable[[int], Ranks]
) -> None:
    whole = ranks(1).call(initial_weights, tiny(name))[0]
    seen = set()
    for weights in ranks(2).call(initial_weights, tiny(name, *layout)):
        for key, (part, dim, stride, rank) in weights.items():
            full = whole[key][0]
            if dim is not None and "parallel.pp=2" not in layout:
                pieces = [piece.chunk(2, dim=dim)[rank] for piece in full.chunk(stride, dim=dim)]
                full = torch.cat(pieces, dim=dim)
            # The vocabulary is padded where two ranks do not share it evenly.
            assert torch.equal(part[: full.shape[0]], full), key
            assert not part[full.shape[0] :].any(), key
            seen.add(key)
    assert seen == whole.keys()


def test_the_norm_counts_split_parameters_once(ranks: Callable[[int], Ranks]) -> None:
    for weights in ranks(2).call(initial_weights, tiny("gqa_1.5B", "parallel.tp=2")):
        for name, (part, dim, _, _) in weights.items():
            assert (dim is None) == (part.dim() == 1 and "linear_qkv" not in name), name


def reported_and_recomputed_loss(config: RunConfig, prefix: Path) -> tuple[float, float]:
    """The first step's loss as the trainer reports it, and the mean over its tokens computed from the logits."""
    observed = Observed()
    with tiny_training(config, prefix, 1, observed.listen) as trainer:
        [model] = trainer.stages
        assert trainer.batches.micro_batches > 1
        losses = [
            torch.nn.functional.cross_entropy(model(batch.tokens).flatten(0, 1), batch.labels.flatten())
            for batch in trainer.batches.training_step(1)
        ]
        recomputed = torch.stack(losses).mean().item()
        assert all(group["fused"] for group in trainer.optimizer.param_groups)
        trainer.train_step(1)
    return observed.losses[0], recomputed


def test_the_reported_loss_is_the_mean_over_all_micro_batches(ranks: Callable[[int], Ranks], corpus: Path) -> None:
    config = tiny("gqa_1.5B", f"data.cache={corpus.parent}")
    [(reported, recomputed)] = ranks(1).call(reported_and_recomputed_loss, config, corpus)
    assert reported == pytest.approx(recomputed, rel=1e-6)


def train_with_settings(settings: dict[str, bool], config: RunConfig, prefix: Path) -> Outcome:
    """One step with other settings of megatron's than ours."""
    from efficientbench.model import gpt

    build = gpt.transformer_config

    def build_with_settings(config: RunConfig, attention_kernel: object) -> object:
        engine = build(config, attention_kernel)
        for name, value in settings.items():
            setattr(engine, name, value)
        return engine

    with mock.patch.object(gpt, "transformer_config", build_with_settings):
        return train(config, prefix, steps=1)


train_sending_in_batches = functools.partial(train_with_settings, {"overlap_p2p_comm": False, "batch_p2p_comm": True})
# Megatron divides all gradients by the tokens at the end, that of the auxiliary loss too.
train_divided_by_tokens_in_the_engine = functools.partial(train_with_settings, {"calculate_per_token_loss": True})


def test_interleaved_stages_send_and_receive_overlapped(ranks: Callable[[int], Ranks], corpus: Path) -> None:
    overrides = [f"data.cache={corpus.parent}", "model.layers=4"]
    interleaved = tiny("gqa_1.5B", *overrides, "parallel.pp=2", "parallel.vpp=2")
    [expected] = ranks(1).call(train, tiny("gqa_1.5B", *overrides), corpus, 1)
    for remedied in ranks(2).call(train, interleaved, corpus, 1):
        assert remedied.norms == pytest.approx(expected.norms, rel=1e-5)
    for default in ranks(2).call(train_sending_in_batches, interleaved, corpus):
        assert default.norms != pytest.approx(expected.norms, rel=1e-2), "megatron has mended it"


def train_with_mean_loss(config: RunConfig, prefix: Path) -> Outcome:
    """One step with a loss function that returns its rank's mean and no count of tokens."""
    from efficientbench.training import trainer
    from efficientbench.training.step_loss import StepLoss

    class Mean(StepLoss):
        """As with a scaler, since only then megatron's factors reach the gradients."""

        def __init__(self, stages: list[Any], micro_batches: int, scaler: bool) -> None:
            super().__init__(stages, micro_batches, scaler=True)

        def of(self, batch: Any) -> Any:
            weights, function = super().of(batch)

            def mean(loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                loss, tokens, sums = function(loss)
                return loss / tokens, sums

            return weights, mean

    with mock.patch.object(trainer, "StepLoss", Mean):
        return train(config, prefix, steps=1)


def test_context_parallel_ranks_count_their_tokens(ranks: Callable[[int], Ranks], corpus: Path) -> None:
    whole, split = (tiny("gqa_1.5B", f"data.cache={corpus.parent}", f"parallel.cp={size}") for size in (1, 2))
    [expected] = ranks(1).call(train, whole, corpus, 1)
    for counted in ranks(2).call(train, split, corpus, 1):
        assert counted.norms == pytest.approx(expected.norms, rel=1e-5)
    for mean in ranks(2).call(train_with_mean_loss, split, corpus):
        assert mean.norms == pytest.approx([2 * norm for norm in expected.norms], rel=1e-5)


def train_without_summing_the_shared_key(config: RunConfig, prefix: Path) -> Outcome:
    """One step in which each rank keeps its own heads' share of the gradient of MLA's shared key."""
    from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region

    from efficientbench.model.attention.mla import MultiLatentAttention

    def for_all_heads(self: MultiLatentAttention, shared_key: torch.Tensor) -> torch.Tensor:
        if not self.config.sequence_parallel:
            return shared_key
        return gather_from_sequence_parallel_region(shared_key, tensor_parallel_output_grad=False, group=self.tp_group)

    with mock.patch.object(MultiLatentAttention, "_for_all_heads", for_all_heads):
        return train(config, prefix, steps=1)


def train_without_marking_replicated_weights(config: RunConfig, prefix: Path) -> Outcome:
    """One step in which MLA's down-projection is not marked as seeing only this rank's part of the sequence."""
    from megatron.core.transformer import TransformerConfig

    def replicated(config: TransformerConfig, inputs: int, outputs: int) -> torch.nn.Linear:
        return torch.nn.Linear(inputs, outputs, bias=False, dtype=config.params_dtype)

    with mock.patch("efficientbench.model.attention.mla.replicated", replicated):
        return train(config, prefix, steps=1)


@pytest.mark.parametrize(
    ("without_remedy", "layout"),
    [
        (train_without_summing_the_shared_key, ["parallel.tp=2"]),
        (train_without_summing_the_shared_key, ["parallel.tp=2", "parallel.sp=true"]),
        (train_without_marking_replicated_weights, ["parallel.tp=2", "parallel.sp=true"]),
    ],
)
def test_the_gradient_of_the_shared_key_sums_all_heads_and_tokens(
    without_remedy: Callable[[RunConfig, Path], Outcome],
    layout: list[str],
    ranks: Callable[[int], Ranks],
    corpus: Path,
) -> None:
    name = "decoder.layers.0.self_attention.linear_kv_down_proj.weight"
    single, split = (
        tiny("mla_1.5B", f"data.cache={corpus.parent}"),
        tiny("mla_1.5B", f"data.cache={corpus.parent}", *layout),
    )

    def shared_key_gradient(outcomes: list[Outcome]) -> torch.Tensor:
        return outcomes[0].gradients[name].tensor[single.model.attention.kv_lora_rank :]

    expected = shared_key_gradient(ranks(1).call(train, single, corpus, 1))
    found = shared_key_gradient(ranks(2).call(train, split, corpus, 1))
    wrong = shared_key_gradient(ranks(2).call(without_remedy, split, corpus))
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    assert (wrong - expected).abs().max() > 0.1 * expected.abs().max()


def train_with_whole_experts_on_each_rank(config: RunConfig, prefix: Path) -> Outcome:
    """One step in which tensor-parallel ranks hold the same experts and give them different tokens."""
    with mock.patch.object(ParallelConfig, "expert_tp", 1):
        return train(config, prefix, steps=1)


@pytest.mark.parametrize(
    ("without_remedy", "layout", "name"),
    [
        (
            train_with_whole_experts_on_each_rank,
            ["parallel.tp=2", "parallel.sp=true"],
            "decoder.layers.0.mlp.experts.0.linear_fc1.weight",
        ),
        (train_divided_by_tokens_in_the_engine, ["parallel.cp=2"], "decoder.layers.0.mlp.router.weight"),
    ],
)
def test_gradients_of_experts_and_router_sum_all_tokens(
    without_remedy: Callable[[RunConfig, Path], Outcome],
    layout: list[str],
    name: str,
    ranks: Callable[[int], Ranks],
    corpus: Path,
) -> None:
    overrides = [f"data.cache={corpus.parent}", "model.moe.auxiliary_loss=0.1"]
    single, split = tiny("moe_1.5Bx8", *overrides), tiny("moe_1.5Bx8", *overrides, *layout)

    def gradient(outcomes: list[Outcome]) -> torch.Tensor:
        return whole_gradients(outcomes, single.model.vocab_size)[name]

    expected = gradient(ranks(1).call(train, single, corpus, 1))
    found = gradient(ranks(2).call(train, split, corpus, 1))
    wrong = [each.gradients[name].tensor for each in ranks(2).call(without_remedy, split, corpus)]
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    for each in wrong:
        assert each.shape == expected.shape
        assert (each - expected).abs().max() > 0.01 * expected.abs().max(), "megatron has mended it"
