"""Which updates are queued without the host: decided by what AdamW does on the device, before the first step."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.configs import ATTENTIONS, BACKBONE, tiny, tiny_model

pytestmark = pytest.mark.usefixtures("single_rank")
CPU = torch.device("cpu")
DECAYED = {
    "embedding.word_embeddings.weight",
    *(f"decoder.layers.*.self_attention.{name}.weight" for name in ("linear_qkv", "linear_proj")),
    *(f"decoder.layers.*.mlp.{name}.weight" for name in ("linear_fc1", "linear_fc2")),
}
NSA = {
    "decoder.layers.*.self_attention.linear_gate.weight",
    *(f"decoder.layers.*.self_attention.compress_{of}.weight_{at}" for of in ("key", "value") for at in ("in", "out")),
}
MLA = {f"decoder.layers.*.self_attention.linear_{name}_proj.weight" for name in ("q", "kv_down", "kv_up")}
KDA = {f"decoder.layers.*.self_attention.linear_{name}.weight" for name in ("low", "decay", "gate")}
EXPERTS = {
    "decoder.layers.*.mlp.router.weight",
    *(f"decoder.layers.*.mlp.experts.{name}.weight" for name in ("linear_fc1", "linear_fc2")),
}


@pytest.fixture
def optimizer() -> Callable[[str], Any]:
    """`optimizer(dtype)` is megatron's, as a run in that dtype has it."""
    from efficientbench.model.gpt import build_stages
    from efficientbench.training.update.optimizer import build_optimizer, wrap_data_parallel

    def build(dtype: str) -> Any:
        config = tiny("gqa_0.5B", f"training.dtype={dtype}")
        return build_optimizer([wrap_data_parallel(stage, config) for stage in build_stages(config, CPU)], config)

    return build


@pytest.mark.parametrize(("dtype", "queued"), [("fp32", True), ("bf16", True), ("fp16", False)])
def test_only_the_loss_scaler_needs_the_host(dtype: str, queued: bool, optimizer: Callable[[str], Any]) -> None:
    from efficientbench.training.update.optimizer import can_queue

    assert can_queue(optimizer(dtype), CPU) == queued


def _without_the_flag(*tensors: Any, found_inf: Any = None, **options: Any) -> None:
    _fused_adamw(*tensors, **options)


def _without_the_divisor(*tensors: Any, grad_scale: Any = None, **options: Any) -> None:
    _fused_adamw(*tensors, **options)


def _not_there(*tensors: Any, **options: Any) -> None:
    raise NotImplementedError("Could not run 'aten::_fused_adamw_' with arguments from the 'NPU' backend")


_fused_adamw = torch._fused_adamw_


@pytest.mark.parametrize("kernel", [_without_the_flag, _without_the_divisor, _not_there])
def test_a_kernel_that_cannot_skip_or_clip_makes_the_host_wait(
    kernel: Callable[..., None], optimizer: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from efficientbench.training.update.optimizer import can_queue

    monkeypatch.setattr(torch, "_fused_adamw_", kernel)
    assert not can_queue(optimizer("fp32"), CPU)


def test_an_optimizer_of_another_library_makes_the_host_wait(optimizer: Callable[[str], Any]) -> None:
    from efficientbench.training.update.optimizer import can_queue

    class FusedAdam(torch.optim.AdamW):
        """As Apex and Transformer Engine have one."""

    other = optimizer("fp32")
    other.chained_optimizers[0].optimizer.__class__ = FusedAdam
    assert not can_queue(other, CPU)


RECURRENT = ("gdn_1.5B", "mamba2_1.5B")


@pytest.mark.parametrize("distributed", ["true", "false"])
@pytest.mark.parametrize(
    ("name", "decayed"),
    [
        ("gqa_1.5B", DECAYED),
        ("mla_1.5B", {name for name in DECAYED if "linear_qkv" not in name} | MLA),
        ("nsa_1.5B", DECAYED | NSA),
        # Neither the short convolution nor what makes its decays.
        *((name, {each.replace("linear_qkv", "linear_in") for each in DECAYED}) for name in RECURRENT),
        ("kda", {name.replace("linear_qkv", "linear_in") for name in DECAYED} | KDA),
        ("moe_1.5Bx8", {name for name in DECAYED if "mlp" not in name} | EXPERTS),
        ("learnable_absolute_1.5B", DECAYED),
        ("relative_1.5B", DECAYED),
        # A table of its own decays as the embedding does; norms of heads and of the embedding do not.
        ("gqa_1.5B, every key", DECAYED | {"output_layer.weight"}),
    ],
)
def test_only_matrices_decay(name: str, decayed: set[str], distributed: str) -> None:
    """With gradients of zero an AdamW step is the decay alone."""
    from efficientbench.model.gpt import build_stages
    from efficientbench.model.initial_weights import global_parameters
    from efficientbench.training.update.optimizer import build_optimizer, set_rates, wrap_data_parallel
    from efficientbench.training.update.parameter_roles import decayed_names

    name, _, keys = name.partition(", ")
    overrides = ["training.weight_decay=0.1", f"parallel.distributed_optimizer={distributed}"]
    make = tiny_model if name in ATTENTIONS else tiny
    config = make(name, *overrides, *(BACKBONE if keys else []))
    [stage] = [wrap_data_parallel(stage, config) for stage in build_stages(config, CPU)]
    for parameter in stage.parameters():
        parameter.data.fill_(1.0)
    optimizer = build_optimizer([stage], config)
    set_rates(optimizer, 0.1, config.training.weight_decay)
    stage.zero_grad_buffer()
    optimizer.zero_grad()
    optimizer.step()
    assert decayed_names([stage]) == decayed
    for key, parameter in global_parameters(stage.module).items():
        expected = 1 - 0.1 * 0.1 if re.sub(r"\.\d+\.", ".*.", key) in decayed else 1.0
        assert parameter.detach().unique().tolist() == pytest.approx([expected]), key
