"""Plots over sizes, sequence lengths and devices: which runs make a line, and what it shows."""

from __future__ import annotations

from typing import Any

import pytest
from support.metrics_parts import make_record

from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.plots.scaling_plots import scaling_figures
from efficientbench.metrics.report.plots.svg import numbered


def record(variant: str = "gqa", **values: Any) -> RunRecord:
    size = values.get("size", "1.5B")
    return make_record({"variant": variant, "run": f"{variant}_{size}", **values})


def titles(*records: RunRecord) -> dict[str, str]:
    return {figure.title: figure.plot for figure in scaling_figures(numbered(records))}


def test_sizes_of_one_variant_make_a_line_but_sizes_of_two_do_not() -> None:
    sizes = {"0.5B": 500_000_000, "3B": 3_000_000_000}
    small, large = (
        record(size=size, parameters_active=count, tokens=count * 20, energy_j_per_token=count / 1e11)
        for size, count in sizes.items()
    )
    plots = titles(small, large)
    assert set(plots) == {"Energy over sizes"}
    assert "gqa: 0.005 at 500M, 0.03 at 3G" in plots["Energy over sizes"]
    other = large.model_copy(update={"variant": "mqa", "run": "mqa_3B"})
    assert titles(small, other) == {}
    assert titles(small, large.model_copy(update={"dtype": "fp32"})) == {}
    assert titles(small, large.model_copy(update={"status": "failed"})) == {}


def test_sequence_lengths_with_equal_tokens_per_step_make_a_line() -> None:
    lengths = {2048: 16, 8192: 4}
    runs = [
        record(seq_len=length, global_batch_size=batch, tokens_per_s=1e6 / length, amu_gb=length / 256, seed=length)
        for length, batch in lengths.items()
    ]
    plots = titles(*runs)
    assert set(plots) == {"Speed over sequence lengths", "Memory over sequence lengths"}
    assert "gqa_1.5B: 8 at 2048, 32 at 8192" in plots["Memory over sequence lengths"]


def test_a_sweep_over_sequence_lengths_makes_a_line_with_unequal_tokens_per_step() -> None:
    """`sweep --set seq_len=1024,2048` leaves the global batch as it is."""
    runs = [record(seq_len=length, tokens_per_s=1e6 / length, amu_gb=length / 256) for length in (2048, 8192)]
    plots = titles(*runs)
    assert list(plots) == [
        "Speed over sequence lengths, with as many sequences a step",
        "Memory over sequence lengths, with as many sequences a step",
    ]
    assert "gqa_1.5B: 8 at 2048, 32 at 8192" in list(plots.values())[1]
    assert titles(runs[0], runs[1].model_copy(update={"global_batch_size": 3})) == {}


@pytest.mark.parametrize(
    ("batches", "title"),
    [((16, 16), "Strong scaling: one global batch on more devices"),
     ((16, 64), "Weak scaling: a global batch that grows with the devices")],
)  # fmt: skip
def test_devices_are_compared_by_speed_per_device(batches: tuple[int, int], title: str) -> None:
    one, four = (
        record(devices=devices, dp=devices, global_batch_size=batch, tokens_per_s_per_device=speed)
        for devices, batch, speed in ((1, batches[0], 1000.0), (4, batches[1], 900.0))
    )
    slower = four.model_copy(update={"tokens_per_s_per_device": 700.0, "dp": 2, "tp": 2, "run": "gqa_tp2"})
    plots = titles(one, four, slower)
    assert set(plots) == {title}
    # Of four devices the faster layout: 900 of 1000 tokens/s.
    assert "gqa_1.5B: 100 at 1, 90 at 4" in plots[title]


def test_a_loss_after_too_few_tokens_is_not_drawn() -> None:
    sizes = {"0.5B": 500_000_000, "3B": 3_000_000_000}
    runs = [
        record(size=size, parameters_active=count, validation_loss=3.0, tokens_per_parameter=ratio)
        for (size, count), ratio in zip(sizes.items(), (20.0, 0.1), strict=True)
    ]
    assert titles(*runs) == {}
