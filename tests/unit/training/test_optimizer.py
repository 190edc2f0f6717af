"""Which updates are queued without the host: decided by what AdamW does on the device, before the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.configs import tiny

pytestmark = pytest.mark.usefixtures("single_rank")
CPU = torch.device("cpu")


@pytest.fixture
def optimizer() -> Callable[[str], Any]:
    """`optimizer(dtype)` is megatron's, as a run in that dtype has it."""
    from efficientbench.model.gpt import build_stages
    from efficientbench.training.optimizer import build_optimizer, wrap_data_parallel

    def build(dtype: str) -> Any:
        config = tiny("gqa_0.5B", f"training.dtype={dtype}")
        return build_optimizer([wrap_data_parallel(stage, config) for stage in build_stages(config, CPU)], config)

    return build


@pytest.mark.parametrize(("dtype", "queued"), [("fp32", True), ("bf16", True), ("fp16", False)])
def test_the_loss_scaler_alone_needs_the_host(dtype: str, queued: bool, optimizer: Callable[[str], Any]) -> None:
    from efficientbench.training.optimizer import can_queue

    assert can_queue(optimizer(dtype), CPU) == queued


def _without_the_flag(*tensors: Any, found_inf: Any = None, **options: Any) -> None:
    _fused_adamw(*tensors, **options)


def _not_there(*tensors: Any, **options: Any) -> None:
    raise NotImplementedError("Could not run 'aten::_fused_adamw_' with arguments from the 'NPU' backend")


_fused_adamw = torch._fused_adamw_


@pytest.mark.parametrize("kernel", [_without_the_flag, _not_there])
def test_a_kernel_that_heeds_no_flag_makes_the_host_wait(
    kernel: Callable[..., None], optimizer: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from efficientbench.training.optimizer import can_queue

    monkeypatch.setattr(torch, "_fused_adamw_", kernel)
    assert not can_queue(optimizer("fp32"), CPU)


def test_an_optimizer_of_another_library_makes_the_host_wait(optimizer: Callable[[str], Any]) -> None:
    from efficientbench.training.optimizer import can_queue

    class FusedAdam(torch.optim.AdamW):
        """As Apex and Transformer Engine have one."""

    other = optimizer("fp32")
    other.chained_optimizers[0].optimizer.__class__ = FusedAdam
    assert not can_queue(other, CPU)
