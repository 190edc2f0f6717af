"""Which kernels the record names, and which of them are fallbacks."""

from __future__ import annotations

import pytest
import torch

from efficientbench.config.load import resolve
from efficientbench.model.kernels import flex, grouped_mm, recurrence_fla
from efficientbench.model.kernels.choose_attention import AttentionShape, fastest
from efficientbench.model.kernels.names import attention_work, fallback_kernels, kernel_names, kernel_reasons
from efficientbench.model.kernels.nsa import selected_attention_fla as nsa_fla


@pytest.mark.parametrize("name", ["gqa_1.5B", "mla_1.5B", "nsa_1.5B", "relative_1.5B", "moe_0.5Bx8"])
def test_a_cpu_runs_on_the_kernels_that_it_has(name: str) -> None:
    config = resolve(name)
    # torch 2.6 multiplies experts one by one.
    lacking = {"grouped_mm"} if name.startswith("moe") and not grouped_mm.has_grouped_mm("cpu") else set()
    assert fallback_kernels(config, "cpu").keys() == lacking
    assert set(fallback_kernels(config, "cuda")) <= set(kernel_names(config, "cuda"))


def test_the_activation_has_its_own_name() -> None:
    names = kernel_names(resolve("nanochat_d12"), "cpu")
    assert "swiglu" not in names
    assert names["relu2"] == "torch elementwise"
    assert set(fallback_kernels(resolve("nanochat_d12"), "npu")) == {"attention", "norm", "rope"}


def test_the_records_name_and_the_counted_work_are_those_of_a_gpus_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "runs", lambda device_type: device_type == "cuda")
    monkeypatch.setattr(nsa_fla, "_installed", lambda: True)
    nsa, relative, alibi = (
        resolve("nsa_1.5B"), resolve("relative_1.5B"), resolve("gqa_1.5B", overrides=["model.position.kind=alibi"])
    )  # fmt: skip
    assert kernel_names(nsa, "cuda")["nsa_window"] == kernel_names(alibi, "cuda")["attention"] == "torch flex_attention"
    # Twelve heads of 128 compare each query with 127 compressed keys once more, to choose by.
    assert attention_work(nsa, "cuda").again == 2 * 12 * 128 * 127
    assert "gradient of the bias" in kernel_names(relative, "cuda")["attention"]
    # Scores and gradients of probabilities once more, each with 1,024 keys on average, as the formulas count.
    assert attention_work(relative, "cuda").again_in_backward == 2 * 2 * 12 * 128 * 1024
    assert attention_work(alibi, "cuda").again_in_backward == 0


def test_an_npu_without_documented_kernels_says_what_fell_back() -> None:
    # No torch_npu is here, as on a chip that is not known.
    found = fallback_kernels(resolve("moe_0.5Bx8"), "npu")
    assert set(found) == {"attention", "norm", "rope", "swiglu", "grouped_mm"}
    assert set(found.values()) == {"torch_npu's fused kernels are documented for Ascend A2 and A3"}


def test_a_missing_kernel_is_a_fallback_where_it_would_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    nsa, moe, relative = resolve("nsa_1.5B"), resolve("moe_0.5Bx8"), resolve("relative_1.5B")
    monkeypatch.setattr(nsa_fla, "_installed", lambda: True)
    # No GPU is here, so that FlexAttention cannot run.
    monkeypatch.setattr(flex, "runs", lambda device_type: False)
    assert fallback_kernels(relative, "cuda") == {"attention": "FlexAttention needs Triton"}
    assert fallback_kernels(nsa, "cuda") == {
        "nsa_compression": "FlexAttention needs Triton",
        "nsa_window": "FlexAttention needs Triton",
    }
    monkeypatch.setattr(flex, "runs", lambda device_type: device_type == "cuda")
    assert fallback_kernels(relative, "cuda") == fallback_kernels(nsa, "cuda") == {}
    monkeypatch.setattr(nsa_fla, "_installed", lambda: False)
    assert list(fallback_kernels(nsa, "cuda")) == ["nsa_selection"]
    monkeypatch.setattr(grouped_mm, "has_grouped_mm", lambda device_type: False)
    assert list(fallback_kernels(moe, "cpu")) == ["grouped_mm"]


@pytest.mark.parametrize(
    ("kind", "part", "function"),
    [
        ("gdn", "gated_delta_rule", "chunk_gated_delta_rule"),
        ("kda", "gated_delta_rule", "chunk_kda"),
        ("mamba2", "state_space", "chunk_simple_gla"),
    ],
)
def test_a_recurrent_layer_names_flas_kernel_or_why_it_does_not_serve(
    kind: str, part: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(device_type: str, *overrides: str) -> tuple[bool, str | None]:
        config = resolve("gdn_1.5B", overrides=[f"model.attention.kind={kind}", *overrides])
        return function in kernel_names(config, device_type)[part], fallback_kernels(config, device_type).get(part)

    monkeypatch.setattr(recurrence_fla, "_lacking", lambda rule: None)
    assert found("cuda") == (True, None)
    assert found("cpu") == found("npu") == (False, None)
    named, why = found("cuda", "training.dtype=fp32")
    assert not named
    assert "they serve bf16" in str(why)
    named, why = found("cuda", "model.attention.key_dim=512")
    assert not named
    assert "keys of 16 to 256" in str(why)
    monkeypatch.setattr(recurrence_fla, "_lacking", lambda rule: "fla-core is not installed")
    assert found("cuda") == (False, "fla-core is not installed")


def test_ranks_that_share_a_sequence_choose_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    # A choice would measure on the GPU, which is not there.
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    shared = resolve("gqa_1.5B", overrides=["parallel.cp=2"])
    assert kernel_names(shared, "cuda")["attention"] == "torch scaled_dot_product_attention"


def test_two_runs_that_choose_one_kernel_name_it_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve("gqa_0.5B", smoke=True)
    shape = AttentionShape.of(config)
    assert shape is not None
    # As on a GPU: by measurement, here of what the CPU has.
    choices = [fastest(["flash", "cudnn"], shape, torch.device("cpu")) for _ in range(2)]
    assert choices[0].times_s != choices[1].times_s
    names, reasons = [], []
    for choice in choices:
        monkeypatch.setattr("efficientbench.model.kernels.names.choose", lambda *_, choice=choice: choice)
        names.append(kernel_names(config, "cpu"))
        reasons.append(kernel_reasons(config, "cpu")["attention"])
    assert names[0] == names[1]
    assert all(reason.startswith("forward and backward: flash ") for reason in reasons)
    assert all(reason.endswith(" ms; not: cudnn") for reason in reasons)


def test_a_gpu_that_multiplies_experts_one_by_one_is_not_said_to_group_them(monkeypatch: pytest.MonkeyPatch) -> None:
    moe = resolve("moe_0.5Bx8", overrides=["training.dtype=bf16"])
    monkeypatch.setattr(grouped_mm, "has_grouped_mm", lambda device_type: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for capability, at_once in (((8, 0), False), ((9, 0), True), ((10, 0), True), ((12, 0), False)):
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda capability=capability: capability)
        assert grouped_mm.name("cuda", torch.bfloat16) == grouped_mm.NAMES[at_once]
        assert grouped_mm.name("cuda", torch.float32) == grouped_mm.NAMES[False]
    assert kernel_names(moe, "cpu")["grouped_weight_gradient"].endswith("one expert after another")
