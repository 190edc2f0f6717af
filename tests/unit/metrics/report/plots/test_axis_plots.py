"""Plots of sweeps over their axes."""

from __future__ import annotations

import re

from support.metrics_parts import make_record

from efficientbench.metrics.report.html.page import page
from efficientbench.metrics.report.plots.axis_plots import axis_curves, axis_maps
from efficientbench.metrics.report.plots.svg import Run, numbered
from efficientbench.metrics.report.report import Report
from efficientbench.metrics.report.suites import make_rows


def swept(label: str, loss: float, variant: str = "gqa", **facts: object) -> Run:
    run = f"{variant}_1.5B__{label}"
    record = make_record({"variant": variant, "run": run, "validation_loss": loss, "config": {"label": label}, **facts})
    return numbered([record])[0]


def test_one_axis_of_numbers_is_a_curve_for_each_model_in_the_order_of_its_values() -> None:
    runs = [
        swept(f"mine__learning_rate={rate}", loss, variant)
        for variant, losses in (("gqa", (3.3, 3.1, 3.2)), ("mla", (3.4, 3.0, 3.5)))
        for rate, loss in zip(("0.003", "0.0003", "0.001"), losses, strict=True)
    ]
    [figure] = axis_curves([*runs, swept("mine__learning_rate=0.01", 9.0, status="stopped")])
    assert figure.title == "val loss over learning_rate"
    assert re.findall("<title>(.*?)</title>", figure.plot) == [
        "gqa_1.5B_mine: 3.1 at 0.0003, 3.2 at 0.001, 3.3 at 0.003",
        "mla_1.5B_mine: 3 at 0.0003, 3.5 at 0.001, 3.4 at 0.003",
    ]
    assert axis_maps(runs) == []


def test_two_axes_are_a_heat_map_whose_best_cell_is_the_darkest() -> None:
    runs = [swept(f"lr={lr}__tp={tp}", 3 + 10 * lr + tp / 10) for lr in (0.1, 0.02) for tp in (1, 2, 8)]
    [figure] = axis_maps(runs)
    assert figure.title == "gqa_1.5B: val loss by lr and tp"
    darkest = max(
        zip(re.findall('fill-opacity="(.*?)"', figure.plot), re.findall("<title>(.*?): ", figure.plot), strict=True)
    )
    assert darkest == ("0.750", "gqa_1.5B__lr=0.02__tp=1")
    assert re.findall('class="tick"[^>]*>(.*?)<', figure.plot) == ["0.02", "0.1", "1", "2", "8"]
    assert axis_curves(runs) == []


def test_an_axis_of_kinds_of_attention_is_one_of_a_heat_map() -> None:
    """`sweep --set attention.kind=gqa,mla --set lr=…`: each record says by its name what it has in place of gqa."""
    kinds = {"gqa": "", "mla": " (with mla)"}
    runs = [
        swept(f"attention.kind={kind}__lr={lr}", 3.0, f"gqa{other}") for kind, other in kinds.items() for lr in (1, 2)
    ]
    assert {figure.title for figure in axis_maps(runs)} == {"gqa_1.5B: val loss by attention.kind and lr"}


def test_axes_of_words_and_shortened_labels_are_not_drawn() -> None:
    runs = [swept(f"optimizer={name}", 3.0) for name in ("adamw", "muon")]
    runs += [swept(f"lr={rate}~0123abcd", 3.0) for rate in (0.1, 0.2)]
    assert (axis_curves(runs), axis_maps(runs)) == ([], [])


def test_the_page_has_the_plots_of_a_sweep() -> None:
    runs = [swept(f"lr={lr}__tp={tp}", 3 + 10 * lr + tp / 10) for lr in (0.1, 0.02) for tp in (1, 2)]
    assert '<section id="axes"><h2>Over the axes of a sweep</h2>' in page(Report(make_rows([r.record for r in runs])))
