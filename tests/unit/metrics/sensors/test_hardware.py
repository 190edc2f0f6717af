"""The table of peak rates: every name finds its own row, unknown ones find none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.sensors.hardware import (
    OWN_ROWS,
    TABLE,
    device_rates,
    known_device,
    memory_bandwidth,
    peak_flops,
)

UNKNOWN = (
    *("AMD EPYC 7742", "NVIDIA A10G", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 Laptop GPU"),
    *("NVIDIA GeForce RTX 4090 D", "NVIDIA A100X", "NVIDIA L40", ""),
)
CONTENT = yaml.safe_load(TABLE.read_text())
ROWS = CONTENT["devices"]


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("Tesla V100-PCIE-32GB", "fp16", 112),
        ("Tesla V100S-PCIE-32GB", "fp16", 130),
        ("NVIDIA A100-SXM4-40GB", "bf16", 312),
        ("NVIDIA A100-SXM4-80GB", "torch.bfloat16", 312),
        ("NVIDIA A100 80GB PCIe", "bfloat16", 312),
        ("A100-PCIE-40GB", "float32", 19.5),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA A30", "bf16", 165),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5),
        ("NVIDIA H100 PCIe", "bf16", 756.5),
        ("NVIDIA H100 NVL", "bf16", 835.5),
        ("NVIDIA H200", "bf16", 989.5),
        ("NVIDIA H800", "bf16", 989.5),
        ("NVIDIA A800-SXM4-80GB", "bf16", 312),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA GH200 480GB", "bf16", 989.5),
        ("NVIDIA GeForce RTX 3090", "bf16", 71),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA GeForce RTX 5090", "bf16", 209.5),
        ("NVIDIA RTX A6000", "bf16", 154.8),
        ("NVIDIA RTX 6000 Ada Generation", "bf16", 364.2),
        ("NVIDIA B300 SXM6 AC", "bf16", 2250),
        ("NVIDIA GB200", "bf16", 2500),
        ("NVIDIA GB300", "bf16", 2500),
        ("NVIDIA GeForce RTX 4080 SUPER", "bf16", 104.4),
        ("NVIDIA GeForce RTX 5070 Ti", "bf16", 87.9),
    ],
)
def test_known_device_names_find_their_own_row(name: str, dtype: str, tflops: float) -> None:
    peak, source = peak_flops(name, dtype)
    assert peak == pytest.approx(tflops * 1e12)
    assert "NVIDIA" in source


@pytest.mark.parametrize(
    ("name", "dtype", "why"),
    [
        ("Ascend910B2", "bf16", "no datasheet settles the rates of Ascend 910B2 .354 to 376 TFLOP/s are in use"),
        ("Ascend910B2C", "bf16", "of Ascend 910B2"),
        ("Ascend910_9392", "bf16", "of Ascend 910C die .354 to 400 TFLOP/s"),
        ("NVIDIA H20", "bf16", "of H20 .148 TFLOP/s are in use"),
        ("Ascend 910B", "bf16", "depends on its SKU"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", "MIG slice"),
        ("Tesla V100-SXM2-32GB", "bf16", "in bf16 is not known .known: fp16, fp32"),
        ("NVIDIA H100 80GB HBM3", "fp8", "in fp8 is not known"),
        *((name, "bf16", f"'{name}' is not in the hardware table") for name in UNKNOWN),
    ],
)
def test_an_ambiguous_or_unknown_device_name_has_a_reason(name: str, dtype: str, why: str) -> None:
    peak, reason = peak_flops(name, dtype)
    assert peak is None
    assert re.search(why, reason)
    assert "configuration" in reason


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_rows_are_complete_and_rates_are_dense(row: dict) -> None:
    required = {"name", "match", "peak_tflops", "memory_bandwidth_gb_s", "memory_gb", "source"}
    assert set(row) - {"unofficial_tflops", "tdp_w"} == required
    assert row["source"].startswith("NVIDIA") or "unofficial_tflops" in row
    peaks = row["peak_tflops"]
    if "fp32" in peaks:
        assert peaks["fp16"] >= 2 * peaks["fp32"] * 0.99
    if "bf16" in peaks:
        assert peaks["bf16"] == peaks["fp16"]
    if "tf32" in peaks:
        # On every one of these chips TF32 runs at half the 16-bit rate: a figure "with sparsity" would show here.
        assert peaks["tf32"] == pytest.approx(peaks["bf16"] / 2, rel=0.03)
    low, high = row.get("unofficial_tflops", (peaks["fp16"], peaks["fp16"]))
    assert low <= peaks["fp16"] <= high


def test_a_device_without_an_official_peak_can_be_planned_with_its_source_named() -> None:
    rates = device_rates("910b3", "bf16")
    assert (rates.name, rates.backend, rates.memory_bytes) == ("Ascend 910B3", "hccl", 64e9)
    assert rates.sources[0].startswith("256 to 354 TFLOP/s are in use for Ascend 910B3, UNOFFICIAL: ")
    assert memory_bandwidth("Ascend910B3") == (None, peak_flops("Ascend910B3", "bf16")[1].rpartition(": ")[0])


OWN = {
    "name": "My card",
    "match": "My Card( \\d+GB)?",
    "peak_tflops": {"bf16": 100, "fp32": 50},
    "memory_bandwidth_gb_s": 900,
    "memory_gb": 24,
    "in_node_gb_s": 32,
}


def test_a_users_own_row_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "card.yaml"
    file.write_text(yaml.safe_dump(OWN))
    monkeypatch.setenv(OWN_ROWS, str(file))
    assert peak_flops("My Card 24GB", "bf16") == (100e12, str(file))
    rates = device_rates("my card", "fp32")
    assert (rates.peak_flops, rates.in_node_bytes_s, rates.between_nodes_bytes_s) == (50e12, 32e9, None)
    assert known_device("my card").memory_bytes == 24e9
    # One's own row comes before the table's, and the others stay.
    several = tmp_path / "cards.yaml"
    several.write_text(yaml.safe_dump([OWN, {**OWN, "name": "H100 SXM", "match": "H100 80GB HBM3"}]))
    monkeypatch.setenv(OWN_ROWS, str(several))
    assert peak_flops("NVIDIA H100 80GB HBM3", "bf16")[0] == 100e12
    assert peak_flops("NVIDIA H200", "bf16")[0] == 989.5e12


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read"),
        ("a: [", "cannot be read"),
        (yaml.safe_dump({**OWN, "match": "("}), "cannot be read"),
        ("9" * 5000, "cannot be read (Exceeds the limit"),
        (yaml.safe_dump({**OWN, "peak_tflop": 1}), "no row of a device: peak_tflop: Extra inputs"),
        (yaml.safe_dump({**OWN, "memory_gb": -1}), "memory_gb: Input should be greater than 0"),
        ("just text", "no row of a device"),
        (yaml.safe_dump({**OWN, "backend": "smoke signals"}), "backend: 'smoke signals' is none of "),
    ],
)
def test_a_wrong_file_of_rows_is_refused_with_the_reason(
    content: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "card.yaml"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv(OWN_ROWS, str(file))
    with pytest.raises(MetricsError, match=re.escape(str(file))) as caught:
        device_rates("H100 SXM", "bf16")
    assert why in str(caught.value)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_every_device_lists_its_links_once(row: dict) -> None:
    links = [each for each in CONTENT["links"] if row["name"] in each["devices"]]
    assert len(links) == 1
    assert set(links[0]) == {"devices", "backend", "in_node_gb_s", "between_nodes_gb_s", "source"}
    rates = device_rates(row["name"], "fp16")
    assert rates.peak_flops == row["peak_tflops"]["fp16"] * 1e12
    assert rates.in_node_bytes_s >= (rates.between_nodes_bytes_s or 0)


def test_rates_are_found_by_driver_name_and_a_users_peak_overrides() -> None:
    rates = device_rates("NVIDIA H200", "bf16", peak=1e15)
    assert (rates.name, rates.peak_flops, rates.sources[0]) == ("H200 SXM", 1e15, "peak given")
    assert (rates.in_node_bytes_s, rates.between_nodes_bytes_s) == (450e9, 50e9)


@pytest.mark.parametrize("typed", ["h100 sxm", "H100_SXM", "sxm h100", "NVIDIA H100 SXM", "h100 80gb hbm3"])
def test_rates_are_found_by_words_of_a_device_name(typed: str) -> None:
    assert device_rates(typed, "bf16") == device_rates("H100 SXM", "bf16")
    assert device_rates("l40s", "bf16").name == "L40S"
    assert device_rates("tesla v100s", "fp16").name == "V100S PCIe"
    assert device_rates("A6000", "bf16").name == "RTX A6000"
    assert device_rates("RTX4090", "bf16").name == "RTX 4090"
    assert device_rates("910b2", "bf16").name == "Ascend 910B2"


@pytest.mark.parametrize(
    ("name", "dtype", "why"),
    [
        ("H100 SMX", "bf16", "did you mean 'H100 SXM'"),
        ("V100 SXM2", "bf16", "in bf16 is not known .known: fp16, fp32"),
        ("abacus", "bf16", "'abacus' is not in the table of devices .V100S PCIe,"),
        ("A100", "bf16", "'A100' is several devices: name one of A100 80GB SXM, A100 80GB PCIe, A100 40GB"),
        ("910B", "bf16", "depends on its SKU .*: name one of Ascend 910B1, Ascend 910B2, Ascend 910B3, Ascend 910B4$"),
        ("A100 20GB", "bf16", r"=FILE.; did you mean 'A100 40GB'\?$"),
        ("A1000", "bf16", r"=FILE.$"),
        ("RTX 6000", "bf16", r"did you mean 'RTX 6000 Ada'\?$"),
    ],
)
def test_unknown_rates_have_a_reason(name: str, dtype: str, why: str) -> None:
    with pytest.raises(MetricsError, match=why):
        device_rates(name, dtype)


@pytest.mark.parametrize(
    "name",
    ["RTX 3080", "RTX 4090 Laptop", "RTX PRO 6000 Blackwell", "NVIDIA GeForce RTX 3090 Ti", "RTX A6000 Ada", "Ada"],
)
def test_a_different_card_is_neither_used_nor_suggested(name: str) -> None:
    with pytest.raises(MetricsError, match=f"'{name}' is not in the table of devices") as caught:
        device_rates(name, "bf16")
    assert "did you mean" not in str(caught.value)


def test_memory_bandwidth_has_a_datasheet_or_a_reason() -> None:
    bandwidth, source = memory_bandwidth("NVIDIA A100-SXM4-80GB")
    assert bandwidth == 2039e9
    assert "datasheet" in source
    # A V100's peak in bf16 is not known, its bandwidth is.
    assert memory_bandwidth("Tesla V100-SXM2-16GB")[0] == 900e9
    assert memory_bandwidth("Nonesuch 1") == (
        None,
        "the memory bandwidth of 'Nonesuch 1' is not in the hardware table",
    )
