"""DeepSpeed's configuration, and what of accelerate the ranks on CPUs rest on."""

from __future__ import annotations

import inspect
from importlib.metadata import version

import pytest
import torch

from efficientbench.devices.cuda import CUDA
from efficientbench.devices.npu import NPU
from efficientbench.finetuning.load import resolve_tuning
from efficientbench.finetuning.zero import allow_cpu_ranks, deepspeed_config


def test_deepspeeds_configuration_leaves_optimizer_and_batch_to_the_trainer() -> None:
    config = deepspeed_config(resolve_tuning("lora_32B"), NPU())
    assert config is not None
    # Sections that would take the place of the Trainer's own optimizer and schedule.
    assert not {"optimizer", "scheduler"} & config.keys()
    assert {config[key] for key in ("train_batch_size", "gradient_accumulation_steps", "gradient_clipping")} == {"auto"}
    zero = config["zero_optimization"]
    assert (zero["stage"], zero["overlap_comm"], zero["stage3_gather_16bit_weights_on_model_save"]) == (3, False, False)
    assert not {"offload_optimizer", "offload_param"} & zero.keys()
    full = deepspeed_config(resolve_tuning("full_32B", overrides=["zero.offload=all", "zero.hpz=8"]), CUDA())
    assert full is not None
    zero = full["zero_optimization"]
    assert (zero["overlap_comm"], zero["zero_hpz_partition_size"]) == (True, 8)
    assert zero["stage3_gather_16bit_weights_on_model_save"]
    assert zero["offload_param"] == zero["offload_optimizer"] == {"device": "cpu"}
    assert deepspeed_config(resolve_tuning("lora_32B", overrides=["zero.stage=0"]), CUDA()) is None


def test_accelerate_has_the_source_that_ranks_on_cpus_rely_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this fails, accelerate has changed: read `allow_cpu_ranks` against its new source before the pin moves."""
    from accelerate.state import DistributedType, PartialState

    assert version("accelerate") == "1.15.0"
    parameters = list(inspect.signature(PartialState._prepare_backend).parameters.values())
    assert [each.name for each in parameters] == ["self", "cpu", "sagemaker_dp", "backend"]
    assert [each.default for each in parameters[1:]] == [False, False, None]
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    state = object.__new__(PartialState)
    # Without the patch a launched rank on a CPU finds no backend, and would train alone.
    assert PartialState._prepare_backend(state, False, False, None) == (None, DistributedType.NO)
    assert "if not cpu" in inspect.getsource(PartialState.__init__)


def test_ranks_on_cpus_stay_on_cpus_on_a_host_with_npus(monkeypatch: pytest.MonkeyPatch) -> None:
    deepspeed_ops = pytest.importorskip("deepspeed.ops")
    from accelerate import state
    from accelerate.state import DistributedType, PartialState

    monkeypatch.setattr(PartialState, "_prepare_backend", PartialState._prepare_backend)
    monkeypatch.setattr(deepspeed_ops, "__compatible_ops__", deepspeed_ops.__compatible_ops__)
    monkeypatch.setattr(state, "is_npu_available", lambda: True)
    for name in ("DS_ACCELERATOR", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("LOCAL_RANK", "0")
    rank = object.__new__(PartialState)
    assert PartialState._prepare_backend(rank)[1] is DistributedType.MULTI_NPU
    allow_cpu_ranks()
    for cpu in (False, True):
        assert PartialState._prepare_backend(rank, cpu) == ("gloo", DistributedType.MULTI_CPU)
