"""Records of fine-tunings beside each other: repeats, conditions, the paper's layout."""

from __future__ import annotations

from typing import Any

from support.metrics_parts import make_record

from efficientbench.finetuning.load import resolve_tuning
from efficientbench.metrics.analysis.conditions import differences
from efficientbench.metrics.analysis.repeats import group_repeats
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.paper.paper import paper_tables


def tuning(*overrides: str, method: str = "lora", **values: Any) -> RunRecord:
    config = resolve_tuning(f"{method}_7B", overrides=overrides)
    given = {
        "run": f"{method}_7B",
        "variant": method,
        "size": "7B",
        "config": config.model_dump(mode="json"),
        "finetuning": {"method": method},
        "seed": config.training.seed,
        "steps_measured": 10,
        "tokens": 1000,
    }
    return make_record(given | values)


def test_runs_with_different_seeds_and_lengths_are_repeats() -> None:
    again = tuning("training.seed=43", "curriculum.seed=43", tokens=1013)
    other = tuning("training.seed=43", "curriculum.seed=43", "curriculum.order=shuffled")
    assert [len(group.records) for group in group_repeats([tuning(), again, other])] == [2, 1]
    assert differences(tuning(), again) == []


def test_another_base_or_zero_stage_is_a_difference() -> None:
    other = tuning("zero.stage=2", "model=Qwen/Qwen3-32B", steps_measured=9)
    assert [each.condition for each in differences(tuning(), other)] == ["tokens", "init", "layout"]


def test_another_deepspeed_is_a_difference() -> None:
    packages = [{"torch": "2.13.0", "deepspeed": version} for version in ("0.19.8", "0.18.4")]
    (found,) = differences(*(tuning(environment={"packages": each}) for each in packages))
    assert str(found) == "software: torch 2.13.0, deepspeed 0.19.8 against torch 2.13.0, deepspeed 0.18.4"


def test_methods_are_side_by_side_in_the_papers_layout() -> None:
    figures = {"trainable_parameters": 1_000, "st_samples_per_param_s": 2e-9, "energy_j_per_sample": 3.25}
    (table,) = paper_tables([tuning(method=method, **figures) for method in ("full", "pissa", "lora")])
    assert table.title == "Parameter-efficient fine-tuning"
    assert [row[0] for row in table.rows] == ["LoRA", "PiSSA", "Full"]
    cells = dict(zip(table.header, table.rows[0], strict=True))
    assert (cells["Trainable"], cells["ST (Samples/param/s)"], cells["J/sample"]) == ("1,000", "2.00e-09", "3.25")
