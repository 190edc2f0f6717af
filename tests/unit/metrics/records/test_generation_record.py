"""The record of generation: its figures by hand, its file, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from pydantic import ValidationError

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas.definitions import percentiles
from efficientbench.metrics.monitoring.aggregate import merge
from efficientbench.metrics.monitoring.measurement import RankMeasurement, StepTime
from efficientbench.metrics.records.generation.generation import (
    GENERATION_FIGURES,
    GenerationRecord,
    GenerationRow,
    Phase,
    RowFigures,
    load_generations,
    read_generation,
    write_generation,
)
from efficientbench.metrics.records.generation.generation_facts import PhaseMeasured, RowMeasured, figures_of

TIMES_S = ((0.01, 0.03), (0.02, 0.04), (0.03, 0.05))
STEPS = tuple(StepTime(number, time_s, 4) for number, time_s in enumerate(sum(TIMES_S, ()), start=1))
RUN = merge([RankMeasurement(0, ((0.0, 0.3),), STEPS, (), ())])


def phase() -> Phase:
    figures = figures_of(Phase, PhaseMeasured(RUN, TIMES_S, 4))
    return Phase(**figures, repeats=3, steps=6, time_percentiles_s=percentiles(sum(TIMES_S, ())))


def measured(peak_bytes_s: float | None = 1e9) -> RowMeasured:
    return RowMeasured(RUN, (0.2, 0.1, 0.3), 4000, 20, 0.03, 3e6, 6e6, "", peak_bytes_s, "no such device", None)


def row() -> GenerationRow:
    figures = figures_of(RowFigures, measured())
    return GenerationRow(**figures, prompt_tokens=16, batch=4, max_new_tokens=4, prefill=phase(), decode=phase())


def record(*rows: GenerationRow) -> GenerationRecord:
    return GenerationRecord(
        run="gqa_0.5B", variant="gqa", size="0.5B", seed=1, devices=1, device_name="a processor", dtype="fp32",
        weights="random", decode_path="eager", status="completed", started_at="2026-01-02T03:04:05+00:00",
        duration_s=1.0, rows=list(rows),
    )  # fmt: skip


def test_figures_match_hand_computed_ones() -> None:
    found = row()
    assert (found.ttft_s, found.ttft_s_p50, found.ttft_s_p95) == pytest.approx((0.2, 0.2, 0.29))
    assert (found.cache_bytes, found.cache_bytes_per_token) == (4000, 200)
    assert (found.bandwidth_utilization, found.bandwidth_utilization_read) == pytest.approx((0.1, 0.2))
    decode = found.decode
    assert decode is not None
    assert (decode.time_s, decode.tokens_per_s, decode.window_s) == pytest.approx((0.03, 4 * 6 / 0.18, 0.3))
    # Student's with 2 degrees of freedom over the means of three repeats, 0.02, 0.03 and 0.04.
    margin = 4.30265 * 0.01 / math.sqrt(3)
    assert (decode.time_s_ci_low, decode.time_s_ci_high) == pytest.approx((0.03 - margin, 0.03 + margin), rel=1e-4)
    assert decode.energy_j_per_token is None
    assert found.why("decode_energy_j_per_token") == decode.unavailable["energy_j"]
    assert found.why("experts_touched") == "the model has no experts"
    assert found.value("prefill_tokens_per_s") == decode.tokens_per_s
    assert found.why("decode_time_s") is None


def test_an_unknown_bandwidth_has_its_reason() -> None:
    figures = figures_of(RowFigures, measured(peak_bytes_s=None))
    assert figures["bandwidth_utilization"] is None
    assert figures["unavailable"]["bandwidth_utilization"] == "no such device"
    assert figures["bytes_needed"] == 3e6


def test_a_single_repeat_has_no_interval() -> None:
    figures = figures_of(Phase, PhaseMeasured(RUN, TIMES_S[:1], 4))
    assert figures["time_s_ci_low"] is None
    assert figures["unavailable"]["time_s_ci_low"] == "an interval needs two repeats"


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    failed = GenerationRow(prompt_tokens=16, batch=64, max_new_tokens=4, failure="out of memory")
    assert failed.why("decode_tokens_per_s") == "out of memory"
    assert failed.value("decode_tokens_per_s") is None
    written = record(row(), failed)
    for name in ("gqa_0.5B", "previous/gqa_0.5B"):
        write_generation(written, tmp_path / name / "generation.json")
    read = read_generation(tmp_path / "gqa_0.5B" / "generation.json")
    assert read.model_copy(update={"sha256": None}) == written
    (tmp_path / "generation.json").write_text("{")
    records, damaged = load_generations(tmp_path)
    assert records == [read]
    assert "damaged, it is no JSON" in damaged[0]


def test_a_wrong_key_or_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "generation.json"
    content = record().model_dump(mode="json")
    path.write_text(json.dumps({**content, "decode_pat": "x"}))
    with pytest.raises(MetricsError, match=r"not a record of generation: decode_pat: .*did you mean decode_path\?"):
        read_generation(path)
    path.write_text(json.dumps({**content, "schema_version": 9}))
    with pytest.raises(MetricsError, match="written in schema version 9; this program reads 1"):
        read_generation(path)


def test_a_row_has_either_figures_or_a_failure() -> None:
    sizes = {"prompt_tokens": 1, "batch": 1, "max_new_tokens": 2}
    with pytest.raises(ValidationError, match="either a failure, or a prefill and a decode"):
        GenerationRow(**sizes)
    with pytest.raises(ValidationError, match="absent without a reason in 'unavailable': ttft_s"):
        GenerationRow(**sizes, prefill=phase(), decode=phase())


def test_every_column_has_a_description_and_a_value() -> None:
    found = row()
    for name, figure in GENERATION_FIGURES.items():
        assert figure.meaning
        if name not in GenerationRecord.model_fields:
            assert found.value(name) is not None or found.why(name), name
