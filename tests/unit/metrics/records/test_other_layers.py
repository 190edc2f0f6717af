"""What a run is called whose keys gave it other layers than the variant has that its name says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.metrics_parts import make_record

from efficientbench.config.load import resolve
from efficientbench.config.matrix import load_matrix
from efficientbench.metrics.records.other_layers import LAYERS, layers_of, named_by_layers
from efficientbench.metrics.records.plausible import read_plausible
from efficientbench.metrics.records.record import write_record
from efficientbench.metrics.report.columns import DERIVED

OURS = "my_package.mine:VARIANT"


def test_each_of_our_variants_has_the_layers_that_its_matrix_gives() -> None:
    runs = [*load_matrix().all_runs, *load_matrix().other_runs]
    found = {run.variant: layers_of(resolve(run.name).model_dump(mode="json")) for run in runs}
    assert found == LAYERS


def of(variant: str, model: dict[str, Any], label: str = "") -> tuple[str, str, Any]:
    values = {"variant": variant, "run": f"{variant}_1.5B{label}", "config": {"model": model}}
    record = make_record(values)
    record = named_by_layers(record, record.config)
    return record.run, record.variant, DERIVED["model"].formula(record)


@pytest.mark.parametrize(
    ("model", "other"),
    [
        ({"attention": {"kind": OURS}}, f" (with {OURS})"),
        ({"attention": {"kind": OURS}, "position": {"kind": "none"}}, f" (with {OURS} + no positions)"),
        ({"attention": {"kind": "mla"}, "position": {"kind": "rope"}}, " (with mla)"),
        ({"attention": {"kind": "gqa"}, "position": {"kind": "relative"}}, " (with relative positions)"),
        (
            {
                **{"attention": {"kind": "gqa"}, "position": {"kind": "rope"}, "pattern": ["gdn", "gdn", "own"]},
                "kinds": {"gdn": {"attention": {"kind": "gdn"}, "position": {"kind": "none"}}},
            },
            " (with gdn/gqa + none/rope positions)",
        ),
        ({"attention": {"kind": "nsa", "window": 32}}, " (with nsa)"),
        ({"attention": {"kind": "gqa", "window": 24}}, " (with gqa window 24)"),
        ({"attention": {"kind": "gqa", "sinks": True, "gate": True}}, " (with gqa sinks gate)"),
        (
            {
                **{"attention": {"kind": "gqa"}, "pattern": ["swa", "swa", "swa", "own"]},
                "kinds": {"swa": {"attention": {"window": 24}}},
            },
            " (with gqa window 24/gqa)",
        ),
        (
            {
                **{"attention": {"kind": "gqa"}, "first": ["swa"], "pattern": ["own"]},
                "kinds": {"swa": {"attention": {"window": 24, "sinks": True}}},
            },
            " (with gqa window 24 sinks/gqa)",
        ),
    ],
)
def test_a_run_with_other_layers_says_so_in_its_name(model: dict[str, Any], other: str) -> None:
    assert of("gqa", model) == (f"gqa_1.5B{other}", f"gqa{other}", f"gqa_1.5B{other}")
    assert of("gqa", model, "__ours")[0] == f"gqa_1.5B__ours{other}"


@pytest.mark.parametrize(
    ("variant", "model"),
    [
        ("mqa", {"attention": {"kind": "gqa", "query_groups": 1}, "position": {"kind": "rope"}}),
        ("gdn", {"attention": {"kind": "gdn"}, "position": {"kind": "none"}}),
        ("gqa", {"attention": {"kind": "gqa", "window": None, "sinks": False, "gate": None}}),
        ("gated", {"attention": {"kind": "gqa", "gate": True}}),
        # As wide as the smaller model needs it.
        (
            "swa_3to1",
            {
                **{"attention": {"kind": "gqa"}, "pattern": ["swa", "swa", "swa", "own"]},
                "kinds": {"swa": {"attention": {"window": 24}}},
            },
        ),
        ("nsa", {"attention": {"kind": "nsa", "window": 32}}),
        ("nsa", {"attention": {"kind": "nsa"}}),
        # A matrix of the user's own says which layers a variant of its name has.
        ("mine", {"attention": {"kind": OURS}}),
        # Files of other tools.
        ("gqa", {}),
        ("gqa", {"attention": "mla", "position": None, "kinds": [], "pattern": [[], {}]}),
    ],
)
def test_a_run_with_its_own_layers_keeps_its_name(variant: str, model: dict[str, Any]) -> None:
    assert of(variant, model) == (f"{variant}_1.5B", variant, f"{variant}_1.5B")


def test_a_record_is_named_by_its_layers_wherever_a_report_reads_it(tmp_path: Path) -> None:
    write_record(make_record({"config": {"model": {"attention": {"kind": OURS}}}}), tmp_path / "record.json")
    assert read_plausible(tmp_path / "record.json").run == f"gqa_1.5B (with {OURS})"
