"""The code for NPUs on a device type `npu` that the CPU computes: what it proves stands in its `torch_npu/__init__.py`.

Ranks of the simulated device are compared with one rank on the CPU, in float32: loss and gradient norm at each step,
every gradient of the first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import npu_checks
from support.cells import assert_equals_single_rank, train
from support.configs import MODELS, SINKS, WINDOW, tiny, tiny_model
from support.host_reads import reads_of_a_step
from support.ranks import Ranks

pytestmark = pytest.mark.proof

STEPS = 4
# Kernels that compute in float32 and in another order.
RELATIVE = 1e-5
TWO_RANKS = {
    "gqa_1.5B": ["parallel.cp=2"],
    "mla_1.5B": ["parallel.tp=2", "parallel.sp=true"],
    "nsa_1.5B": ["parallel.pp=2"],
    "relative_1.5B": ["parallel.dp=2"],
    "moe_1.5Bx8": ["parallel.ep=2", "parallel.dp=2"],
    "nanochat_d12": ["parallel.tp=2"],
    # A banded mask, and with context parallelism a mask of the last queries; sinks by torch's operators.
    WINDOW: ["parallel.cp=2"],
    SINKS: ["parallel.tp=2"],
}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", TWO_RANKS)
def test_training_on_the_simulated_npu_matches_the_cpu(
    name: str,
    size: int,
    ranks: Callable[..., Ranks],
    corpus: Path,
) -> None:
    make = tiny_model if name in MODELS else tiny
    alone = make(name, f"data.cache={corpus.parent}")
    config = alone if size == 1 else make(name, f"data.cache={corpus.parent}", *TWO_RANKS[name])
    [expected] = ranks(1).call(train, alone, corpus, STEPS)
    outcomes = ranks(size, "npu").call(train, config, corpus, STEPS, "npu:0")
    assert_equals_single_rank(outcomes, expected, config.model.vocab_size, RELATIVE)


@pytest.mark.parametrize("name", ["gqa_1.5B", "moe_1.5Bx8"])
def test_muon_on_the_simulated_npu_matches_the_cpu(name: str, ranks: Callable[..., Ranks], corpus: Path) -> None:
    alone = tiny(name, f"data.cache={corpus.parent}", "training.optimizer=muon")
    config = tiny(name, f"data.cache={corpus.parent}", "training.optimizer=muon", "parallel.tp=2", "parallel.sp=true")
    [expected] = ranks(1).call(train, alone, corpus, STEPS)
    outcomes = ranks(2, "npu").call(train, config, corpus, STEPS, "npu:0")
    assert_equals_single_rank(outcomes, expected, config.model.vocab_size, RELATIVE)


# Together they have all fused kernels: heads of unequal dimensions, a bias, experts.
@pytest.mark.parametrize("name", ["mla_1.5B", "relative_1.5B", "moe_1.5Bx8"])
def test_bf16_training_on_the_simulated_npu_is_close_to_the_cpu(
    name: str, ranks: Callable[..., Ranks], corpus: Path
) -> None:
    config = tiny(name, f"data.cache={corpus.parent}", "training.dtype=bf16")
    [expected] = ranks(1).call(train, config, corpus, STEPS)
    [outcome] = ranks(1, "npu").call(train, config, corpus, STEPS, "npu:0")
    # Kernels keep float32 where the CPU rounds in between.
    assert outcome.losses == pytest.approx(expected.losses, rel=1e-2)
    assert outcome.norms == pytest.approx(expected.norms, rel=5e-2)


def test_kernels_and_their_gradients_match_the_cpu(ranks: Callable[..., Ranks]) -> None:
    [errors] = ranks(1, "npu").call(npu_checks.kernel_errors)
    assert {name: error for name, error in errors.items() if error > RELATIVE} == {}


def test_the_operators_of_nsa_do_not_grow_with_the_sequence(ranks: Callable[..., Ranks]) -> None:
    [short], [long] = (ranks(1, "npu").call(npu_checks.nsa_operators, length) for length in (40, 400))
    assert 40 < short == long


def test_branches_and_selection_of_nsa_match_the_cpu(ranks: Callable[..., Ranks]) -> None:
    [errors] = ranks(1, "npu").call(npu_checks.nsa_errors)
    assert {name: error for name, error in errors.items() if error > RELATIVE} == {}


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-6), (torch.bfloat16, 0.01)])
def test_grouped_matmul_and_its_weight_gradient_match_the_cpu(
    dtype: torch.dtype, relative: float, ranks: Callable[..., Ranks]
) -> None:
    [errors] = ranks(1, "npu").call(npu_checks.grouped_matmul_errors, dtype)
    assert max(errors) < relative


def test_the_host_reads_nothing_with_all_experts_on_a_rank(ranks: Callable[..., Ranks]) -> None:
    [(forward, backward, operators)] = ranks(1, "npu").call(
        npu_checks.waits_of_a_mixture, tiny("moe_1.5Bx8", "training.dtype=bf16")
    )
    assert (forward, backward) == ([], [])
    assert operators > 20


def test_the_simulated_device_refuses_the_same_calls_as_the_real_one(ranks: Callable[..., Ranks]) -> None:
    [said] = ranks(1, "npu").call(npu_checks.refusals)
    assert said["reduce float64"] == "HCCL AllReduce & Reduce: Unsupported data type torch.float64"
    assert "same device, but found at least two devices, npu:0 and cpu" in said["mix devices"]
    assert said["give a kernel a host tensor"] == "npu_swiglu: expected a tensor on npu, got one on cpu"
    assert said["mask upside down"] == "refused by the kernel: 1 hides what follows"
    assert "is 2048 × 2048" in said["mask of the sequence's size"]
    assert "'SBD' is none of BSH, SBH" in said["an unknown layout"]
    assert said["gradient of a grouped matmul"].startswith("npu_grouped_matmul has no gradient")
    assert ranks(1, "npu").call(npu_checks.double_becomes_float) == [torch.float32]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_step_synchronizes_the_device_once_and_after_the_update(
    dtype: str, ranks: Callable[..., Ranks], corpus: Path
) -> None:
    config = tiny("gqa_1.5B", f"data.cache={corpus.parent}", f"training.dtype={dtype}")
    [reads] = ranks(1, "npu").call(reads_of_a_step, config, corpus, "npu:0")
    assert reads.before_update == []
    assert len(reads.after_update) == 1


def test_products_of_quantized_weights_on_the_simulated_npu_are_those_of_their_values(
    ranks: Callable[..., Ranks],
) -> None:
    keys = [
        {"weights": width, "symmetric": symmetric, "group": group}
        for width, group in (("int8", None), ("int8", 64), ("int4", 32), ("int4", 128))
        for symmetric in (True, False)
    ]
    [errors] = ranks(1, "npu").call(npu_checks.quantized_errors, keys)
    assert max(errors) < 1e-2
