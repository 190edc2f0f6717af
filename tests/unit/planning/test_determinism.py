"""What a run with `training.deterministic` promises on each device."""

from __future__ import annotations

import pytest
from support.printed import on_one_line

from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve
from efficientbench.devices.base import Device
from efficientbench.devices.cpu import CPU
from efficientbench.devices.cuda import CUDA
from efficientbench.devices.npu import NPU
from efficientbench.planning.plan import not_promised, plan_anywhere
from efficientbench.planning.plan_table import print_plan

ASKED = "training.deterministic=true"


@pytest.mark.parametrize(
    ("device", "environment", "parts"),
    [
        (CPU(), {}, []),
        (CPU(), {"MKL_CBWR": "OFF"}, ["MKL_CBWR"]),
        (CUDA(), {}, []),
        (CUDA(), {"NCCL_ALGO": "^NVLS", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}, []),
        (CUDA(), {"NCCL_ALGO": "NVLS"}, ["NCCL_ALGO"]),
        (NPU(), {}, ["fused kernels"]),
        (NPU(), {"HCCL_DETERMINISTIC": "false"}, ["fused kernels", "HCCL_DETERMINISTIC"]),
    ],
)
def test_a_run_names_the_parts_that_may_differ(device: Device, environment: dict[str, str], parts: list[str]) -> None:
    found = not_promised(resolve("gqa_1.5B", overrides=[ASKED]), device, environment)
    assert list(found) == parts
    assert not_promised(resolve("gqa_1.5B"), device, environment) == {}


@pytest.mark.parametrize(("name", "part"), [("nsa_1.5B", "nsa_selection"), ("kda_3to1_1.5B", "recurrence")])
def test_a_nondeterministic_attention_kernel_is_named(name: str, part: str) -> None:
    config = resolve(name, overrides=[ASKED])
    assert not_promised(config, CUDA(), {}).keys() == {part}
    assert not_promised(config, CPU(), {}) == {}


def test_a_plan_prints_its_determinism() -> None:
    plain = on_one_line(print_plan, plan_anywhere(resolve("gqa_1.5B")))
    on_npu = on_one_line(print_plan, plan_anywhere(resolve("gqa_1.5B", overrides=[ASKED, "device=npu"])))
    promise = "deterministic: the same bits in every run on the same devices, layout and versions of libraries"
    assert promise not in plain
    assert f"{promise}, but perhaps not in fused kernels: torch_npu does not say" in on_npu


def test_rechecks_need_deterministic_kernels() -> None:
    with pytest.raises(ConfigError, match=r"recheck_every needs training\.deterministic=true: other kernels may"):
        resolve("gqa_1.5B", overrides=["training.recheck_every=100"])
