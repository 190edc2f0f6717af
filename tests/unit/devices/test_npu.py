"""Reasons and refusals of the NPU device type, with a fake of torch_npu's namespace."""

from __future__ import annotations

import glob
import importlib.util
import sys
from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from efficientbench.devices import npu
from efficientbench.devices.base import DeviceError
from efficientbench.devices.npu import FUSED, NPU, family
from efficientbench.devices.registry import find_device

Machine = Callable[..., NPU]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """`machine("Ascend910B2")` has one such NPU."""

    def build(chip: str, bf16: bool = True, available: bool = True) -> NPU:
        namespace = SimpleNamespace(
            is_available=lambda: available,
            device_count=lambda: 1,
            get_device_name=lambda index: chip,
            is_bf16_supported=lambda: bf16,
        )
        monkeypatch.setattr(glob, "glob", lambda pattern: ["/dev/davinci0"])
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(npu, "npu_namespace", lambda: namespace)
        return NPU()

    return build


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Ascend910B2", "A2"),
        ("Ascend910B4_1", "A2"),
        ("Ascend910_9382", "A3"),
        ("Ascend950", "950"),
        ("Ascend310P3", "310"),
        ("Ascend310B1", "310"),
        # Without a number "B" is a board of the first generation, which has no bf16.
        ("Ascend910B", "910"),
        ("Ascend910A", "910"),
        ("Ascend910PremiumA", "910"),
        ("Kunpeng", None),
    ],
)
def test_family_of_a_product(name: str, expected: str | None) -> None:
    assert family(name) == expected
    assert (family(name) in FUSED) == (expected in ("A2", "A3"))


def test_a_training_chip_serves(machine: Machine) -> None:
    device = machine("Ascend910B2")
    assert device.unavailable_reason() is None
    assert device.unsupported_dtypes() == {}


def test_bf16_is_refused_where_the_chip_lacks_it_with_the_override_that_helps(machine: Machine) -> None:
    device = machine("Ascend910PremiumA", bf16=False)
    device.check("fp16")
    with pytest.raises(DeviceError, match="Ascend910PremiumA has no bf16 arithmetic: add training.dtype=fp16, which"):
        device.check("bf16")


def test_an_inference_chip_is_named_so(machine: Machine) -> None:
    device = machine("Ascend310P3", bf16=False)
    assert device.unavailable_reason() == "Ascend310P3 is made for inference and cannot train"


def test_an_inference_chip_generates_in_fp16(machine: Machine) -> None:
    device = machine("Ascend310P3", bf16=False)
    assert device.forward_unavailable_reason() is None
    assert device.names() == ["Ascend310P3"]
    device.check("fp16")
    with pytest.raises(DeviceError, match="training.dtype=fp16"):
        device.check("bf16")
    assert find_device("npu", trains=False).type == "npu"
    with pytest.raises(DeviceError, match="made for inference and cannot train"):
        find_device("npu")


@pytest.mark.parametrize("adaptor", ["mindspeed", "megatron_adaptor"])
def test_another_projects_patches_are_refused_by_name(
    adaptor: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = machine("Ascend910B2")
    monkeypatch.setitem(sys.modules, adaptor, SimpleNamespace())  # type: ignore[arg-type]
    reason = device.unavailable_reason()
    assert reason is not None
    assert "patches megatron-core 0.1" in reason
    assert "take it out of this environment's start-up" in reason
    with pytest.raises(DeviceError, match="is already imported"):
        device.prepare(0)


def test_without_cann_the_reason_names_the_script(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    device = machine("Ascend910B2")
    monkeypatch.setattr(npu, "npu_namespace", Mock(side_effect=ImportError("libhccl.so: cannot open shared object")))
    assert device.unavailable_reason() == (
        "torch_npu does not import (libhccl.so: cannot open shared object); source CANN's set_env.sh first"
    )


def test_an_npu_that_the_driver_withholds_is_no_matter_of_cann(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = machine("Ascend910B2")
    error = RuntimeError("NPU function error: aclrtSetDevice, error code is 507033\n[ERROR] many lines of a log")
    monkeypatch.setattr(npu.npu_namespace(), "get_device_name", Mock(side_effect=error))
    assert device.unavailable_reason() == (
        "the driver refuses torch_npu the NPU (NPU function error: aclrtSetDevice, error code is 507033); npu-smi info "
        "tells more"
    )
