"""Formulas of costs/ against published figures, transformers' Qwen2, torch's FLOP counter and what autograd keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.configs import BACKBONE
from support.proofs import rest_as_proofs

from efficientbench.architecture.model import ModelConfig
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.costs.memory import RankMemory, memory_by_stage
from efficientbench.costs.model import (
    count_parameters,
    dense_keys_per_query,
    flops_per_token,
    kv_cache_bytes_per_token,
    over_documents,
)

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM

PUBLISHED = {
    "gqa_0.5B": 494_032_768,
    "gqa_1.5B": 1_543_714_304,
    "gqa_3B": 3_085_938_688,
    "mqa_0.5B": 491_277_184,
    "mqa_1.5B": 1_532_697_088,
    "mqa_3B": 3_067_055_104,
    "rope_1.5B": 1_543_714_304,
    "dense_1.5B": 1_543_714_304,
    "dense_3B": 3_085_938_688,
    "absolute_1.5B": 1_543_714_304,
    "learnable_absolute_1.5B": 1_543_714_304 + 2048 * 1536,
    "relative_1.5B": 1_543_714_304 + 32 * 12,
    "none_1.5B": 1_543_714_304,
    # Layers of 12 · 768², and two tables.
    "nanochat_d12": 12 * 12 * 768**2 + 2 * 65_536 * 768,
}


def qwen2_on_meta(model: ModelConfig) -> Qwen2ForCausalLM:
    import torch
    from oracles.qwen2 import qwen2_config
    from transformers import Qwen2ForCausalLM

    config = qwen2_config(model)
    # Eager attention multiplies the full square, which the counter then sees.
    config._attn_implementation = "eager"
    with torch.device("meta"):
        return Qwen2ForCausalLM(config)


def layout_of(config: RunConfig) -> Layout:
    return Layout.of(config, devices=1, oversubscribe=True)


def memory_of(name: str, *overrides: str) -> tuple[RankMemory, ...]:
    config = resolve(name, overrides=overrides)
    return memory_by_stage(config, layout_of(config), runtime_bytes=0)


EXPERTS = {
    # Backbone + 7 more feed-forward layers (1 more for the active ones) and a router in each layer.
    "moe_0.5Bx8": (494_032_768 + 24 * (7 * 3 * 896 * 4864 + 8 * 896), 494_032_768 + 24 * (3 * 896 * 4864 + 8 * 896)),
    "moe_1.5Bx8": (
        1_543_714_304 + 28 * (7 * 3 * 1536 * 8960 + 8 * 1536),
        1_543_714_304 + 28 * (3 * 1536 * 8960 + 8 * 1536),
    ),
}


@pytest.mark.parametrize(
    ("name", "counts"), [*((name, (count, count)) for name, count in PUBLISHED.items()), *EXPERTS.items()]
)
def test_published_parameters_in_all_and_active(name: str, counts: tuple[int, int]) -> None:
    found = count_parameters(resolve(name).model)
    assert (found.total, found.active) == counts


def test_experts_flops_are_those_of_the_chosen_and_of_the_router() -> None:
    dense, moe = (flops_per_token(resolve(name).model, 2048) for name in ("dense_1.5B", "moe_1.5Bx8"))
    assert moe.forward - dense.forward == 28 * 2 * (3 * 1536 * 8960 + 8 * 1536)
    assert moe.training_hardware == 3 * moe.forward


def test_expert_parallel_ranks_share_experts_and_their_states() -> None:
    names = [f"moe_0.5Bx8 parallel.dp={dp} parallel.ep={ep} training.dtype=fp32" for dp, ep in ((1, 1), (2, 1), (2, 2))]
    (one,), (replicated,), (shared,) = (memory_of(*name.split()) for name in names)
    experts = 4 * 24 * 8 * 3 * 896 * 4864
    assert one.weights == replicated.weights == shared.weights + experts // 2
    # The distributed optimizer shares out the states either way.
    assert shared.adam_moments == replicated.adam_moments == one.adam_moments // 2
    (whole,) = memory_of("moe_0.5Bx8", "parallel.dp=2", "parallel.ep=2", "parallel.distributed_optimizer=false")
    assert whole.adam_moments == one.adam_moments - experts


def test_tensor_parallel_ranks_split_each_expert_or_share_them_out() -> None:
    sp = ["parallel.tp=2", "parallel.sp=true", "parallel.dp=2", "training.dtype=fp32"]
    (split,), (shared,) = memory_of("moe_1.5Bx8", *sp), memory_of("moe_1.5Bx8", *sp, "parallel.ep=2")
    # Half of each, or half of them.
    assert split.weights == shared.weights
    # Each rank's own tokens in whole experts, or everybody's in halves.
    assert split.activations > shared.activations


@pytest.mark.parametrize("name", ["gqa_0.5B", "mqa_3B"])
@pytest.mark.parametrize("smoke", [False, True])
def test_parameters_equal_qwen2(name: str, smoke: bool) -> None:
    model = resolve(name, smoke).model
    assert count_parameters(model).total == qwen2_on_meta(model).num_parameters()


@pytest.mark.parametrize(
    ("name", "seq_len"), rest_as_proofs(1, [("gqa_0.5B", 2048), ("mqa_1.5B", 512), ("gqa_1.5B", 1)])
)
def test_flops_equal_those_that_torch_counts(name: str, seq_len: int) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model = resolve(name).model
    tokens = torch.zeros(1, seq_len, dtype=torch.long, device="meta")
    # A mask of its own keeps transformers from looking at values, which meta tensors lack.
    mask = torch.zeros(1, 1, seq_len, seq_len, device="meta")
    with FlopCounterMode(display=False) as counter:
        qwen2_on_meta(model)(tokens, attention_mask=mask, position_ids=tokens)
    flops = flops_per_token(model, seq_len)
    assert flops.forward_full_square * seq_len == counter.get_total_flops()
    assert flops.training_full_square == 3 * flops.forward_full_square


def test_causal_attention_is_counted_halved() -> None:
    model = resolve("gqa_1.5B").model
    short, long = flops_per_token(model, 1024), flops_per_token(model, 3072)
    # Scores and their product with the values: 2 FLOPs × 2 matmuls × heads × head dim × S / 2, in each layer.
    assert long.forward - short.forward == 28 * 2 * 12 * 128 * 2048
    assert long.forward_full_square - short.forward_full_square == 2 * (long.forward - short.forward)


def test_nanochats_flops_are_those_that_it_estimates() -> None:
    # gpt.py of October 2025: six for each parameter but the embedding's, and 12 · layers · heads · head width · length.
    flops = flops_per_token(resolve("nanochat_d12").model, 2048)
    assert flops.training_full_square == 6 * (185_597_952 - 65_536 * 768) + 12 * 12 * 6 * 128 * 2048


def test_kv_cache() -> None:
    assert kv_cache_bytes_per_token(resolve("gqa_1.5B").model, "bf16") == 28 * 2 * 2 * 128 * 2
    assert kv_cache_bytes_per_token(resolve("mqa_1.5B").model, "fp32") == 28 * 2 * 1 * 128 * 4
    assert kv_cache_bytes_per_token(resolve("mla_1.5B").model, "bf16") == 28 * (384 + 64) * 2


def test_state_by_dtype() -> None:
    count = PUBLISHED["gqa_0.5B"]
    (bf16,), (fp32,) = memory_of("gqa_0.5B"), memory_of("gqa_0.5B", "training.dtype=fp32")
    state = [
        (each.weights / count, each.gradients / count, each.master_weights / count, each.adam_moments / count)
        for each in (bf16, fp32)
    ]
    assert state == [(2, 4, 4, 8), (4, 4, 0, 8)]
    assert fp32.activations == 2 * bf16.activations


def test_data_parallel_ranks_share_the_optimizer_only_where_it_is_distributed() -> None:
    (one,) = memory_of("gqa_0.5B")
    (shared,) = memory_of("gqa_0.5B", "parallel.dp=2")
    (whole,) = memory_of("gqa_0.5B", "parallel.dp=2", "parallel.distributed_optimizer=false")
    assert (shared.master_weights, shared.adam_moments) == (one.master_weights // 2, one.adam_moments // 2)
    assert (whole.weights, whole.master_weights, whole.adam_moments) == (
        one.weights,
        one.master_weights,
        one.adam_moments,
    )


@pytest.mark.parametrize("stages", [2, 4, 7])
def test_stages_hold_the_model_once_and_the_tied_embedding_twice(stages: int) -> None:
    memory = memory_of("gqa_1.5B", f"parallel.pp={stages}")
    assert sum(stage.weights for stage in memory) == 2 * (PUBLISHED["gqa_1.5B"] + 151_936 * 1536)


def test_an_output_table_of_its_own_lies_on_the_last_stage() -> None:
    (tied,), (untied,) = memory_of("gqa_1.5B"), memory_of("gqa_1.5B", "model.tied=false")
    assert untied.weights - tied.weights == 151_936 * 1536 * 2
    # On two stages it takes the place of the tied table's copy.
    weights = [
        [stage.weights for stage in memory_of("gqa_1.5B", "parallel.pp=2", f"model.tied={tied}")]
        for tied in ("true", "false")
    ]
    assert weights[0] == weights[1]
    assert sum(weights[0]) == untied.weights


def test_position_tables_lie_on_the_first_stage_or_on_every_one() -> None:
    for layout in (["parallel.pp=2"], ["parallel.pp=2", "parallel.tp=2"]):
        none, learnable, relative = (
            [stage.weights for stage in memory_of(f"{name}_1.5B", *layout)]
            for name in ("none", "learnable_absolute", "relative")
        )
        assert [each - bare for each, bare in zip(learnable, none, strict=True)] == [2048 * 1536 * 2, 0]
        assert [each - bare for each, bare in zip(relative, none, strict=True)] == [32 * 12 * 2 // len(layout)] * 2


def test_earlier_stages_hold_more_micro_batches() -> None:
    memory = memory_of("gqa_1.5B", "parallel.pp=4")
    first, second, third, last = (stage.activations for stage in memory)
    assert (first, second, third) == (4 * first // 4, 3 * first // 4, 2 * first // 4)
    assert first // 4 < last < third  # the last stage's final norm
    few = memory_of("gqa_1.5B", "parallel.pp=4", "training.global_batch_size=4")
    assert few[0].activations == first // 2  # two micro-batches are all there are


def test_tensor_parallel_ranks_share_matrices_and_vocabulary_but_not_norms() -> None:
    (one,), (two,) = memory_of("gqa_1.5B"), memory_of("gqa_1.5B", "parallel.tp=2")
    norms = (2 * 28 + 1) * 1536 * 2
    assert two.weights - norms == (one.weights - norms) // 2
    (split,) = memory_of("gqa_1.5B", "parallel.tp=2", "parallel.sp=true")
    assert one.activations / 2 == split.activations < two.activations


def test_latents_are_whole_on_every_tensor_parallel_rank() -> None:
    (one,), (two,) = memory_of("mla_1.5B"), memory_of("mla_1.5B", "parallel.tp=2")
    down, norms = 28 * 1536 * (384 + 64), 28 * (2 * 1536 + 384) + 1536
    whole = (down + norms) * 2
    assert two.weights - whole == (one.weights - whole) // 2


ARCHITECTURES = (
    *((name, []) for name in ("gqa_1.5B", "mla_1.5B", "moe_1.5Bx8", "learnable_absolute_1.5B", "nsa_1.5B")),
    ("relative_1.5B", []),
    # In 16 bits, as its formula counts.
    *((f"{kind}_1.5B", ["training.dtype=bf16"]) for kind in ("gdn", "kda_3to1", "mamba2")),
    ("nanochat_d12", []),
    ("gqa_1.5B", BACKBONE),
)


@pytest.mark.parametrize(
    ("name", "overrides", "recompute"),
    [
        pytest.param(
            *(name, overrides, recompute),
            id=f"{name}{', keys' if overrides else ''}, {recompute}",
            # One architecture quickly, all in the proof.
            marks=() if (name, overrides) == ("gqa_1.5B", []) else pytest.mark.proof,
        )
        for name, overrides in ARCHITECTURES
        for recompute in ("none", "selective", "full")
    ],
)
def test_activations_are_those_that_autograd_keeps(
    name: str, overrides: list[str], recompute: str, single_rank: None
) -> None:
    import torch

    from efficientbench.model.gpt import build_stages

    # So many tokens that what does not grow with them is little beside the rest.
    sequence = "training.seq_len=1024" if name.startswith("nsa") else "training.seq_len=128"
    shapes = ["training.dtype=fp32", "model.vocab_size=512", sequence]
    config = resolve(name, True, [*shapes, f"training.recompute={recompute}", *overrides])
    [model] = build_stages(config, torch.device("cpu"))
    # As in training: the loss adds the table's gradient to main_grad, and does not keep it in float32.
    model.config.loss_kernel = replace(model.config.loss_kernel, gradient_is_one=True)
    for parameter in model.parameters():
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage  # alive, so that no address comes twice
        return tensor

    shape = (config.training.micro_batch_size, config.training.seq_len)
    tokens = torch.zeros(shape, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(tokens, tokens, torch.ones(shape))
    measured = sum(storage.nbytes() for storage in kept.values())
    estimate = memory_by_stage(config, layout_of(config), runtime_bytes=0)[0].activations
    assert estimate == pytest.approx(measured, rel=0.15)


def test_interleaved_stages_keep_more_for_the_first_rank() -> None:
    stages = ["training.global_batch_size=64", "parallel.pp=2"]
    (plain, _), (interleaved, _) = memory_of("gqa_1.5B", *stages), memory_of("gqa_1.5B", *stages, "parallel.vpp=2")
    # Two micro-batches through 14 layers, and five (four to warm up) through 7.
    assert interleaved.activations / plain.activations == pytest.approx(5 * 7 / (2 * 14))


def test_context_parallel_ranks_share_tokens_and_optimizer_but_keep_all_keys() -> None:
    (one,), (two,) = memory_of("gqa_1.5B"), memory_of("gqa_1.5B", "parallel.cp=2")
    assert (two.weights, two.adam_moments) == (one.weights, one.adam_moments // 2)
    keys = 28 * 2 * 2 * 128 * 2 * 2048 * 2  # layers, keys and values, groups, width, micro-batch, sequence, bf16
    assert two.activations == one.activations // 2 + keys // 2
    (selective,) = memory_of("gqa_1.5B", "parallel.cp=2", "training.recompute=selective")
    assert selective.activations < one.activations // 2


def test_recomputation_costs_flops_and_saves_memory() -> None:
    model = resolve("gqa_1.5B").model
    none, selective, full = (flops_per_token(model, 2048, each) for each in ("none", "selective", "full"))
    assert none.training == selective.training == full.training == none.training_hardware
    assert selective.recomputed == 28 * 4 * 12 * 128 * 2048 // 2
    assert full.recomputed == full.forward - 2 * 1536 * 151_936
    memory = [memory_of("gqa_1.5B", f"training.recompute={each}")[0] for each in ("none", "selective", "full")]
    assert memory[0].activations > memory[1].activations > 5 * memory[2].activations
    assert memory[2].total < memory[0].total


def test_flops_of_documents_count_their_own_pairs() -> None:
    model = resolve("gqa_1.5B").model
    lengths = {3: 2, 10: 1}
    pairs = 2 * 3 * 4 / 2 + 10 * 11 / 2
    assert over_documents(lengths, dense_keys_per_query) * 16 == pairs
    costs = model.attention_variant.costs
    # The convention halves the square of each document.
    halves = over_documents(lengths, lambda tokens: costs.causal_score_flops(model, tokens))
    assert halves * 16 == 4 * model.heads * model.head_dim * (2 * 3**2 + 10**2) / 2
