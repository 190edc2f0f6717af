"""CSV, table, TensorBoard and the search for records."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.metrics_parts import make_record, printed, read_csv

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.repeats import Group, combine
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.records.plausible import load_records
from efficientbench.metrics.records.record import RECORD_NAME, write_record
from efficientbench.metrics.records.record_parts import Mismatch, Rechecks
from efficientbench.metrics.report.build import build_report, markdown
from efficientbench.metrics.report.columns import runs_csv
from efficientbench.metrics.report.headline import HEADLINE, print_results
from efficientbench.metrics.report.report import Report
from efficientbench.metrics.report.suites import make_rows

SETTLED_COLUMNS = """
run, variant, size, smoke, seed, parameters, parameters_active, flops_per_token, devices, device_name, dtype, seq_len,
micro_batch_size, global_batch_size, tp, pp, dp, ep, cp, tokens, steps_measured, amu_gb, amu_fraction, pcu, al_s,
al_s_p50, al_s_p90, al_s_p99, al_s_ci_low, al_s_ci_high, tt_tokens_per_param_s, tokens_per_s, tokens_per_s_per_device,
aec_w, power_w_sum, energy_j, energy_j_per_token, energy_scope, mfu, mfu_full_square, hfu, peak_memory_allocated_bytes,
peak_memory_reserved_bytes, peak_memory_device_bytes, train_loss, validation_loss, perplexity, bits_per_byte,
device_scope, amu_gb_max, amu_fraction_max, memory_idle_gb, memory_kind, memory_allocated_mean_gb, al_s_std, al_s_cv,
tt_tokens_per_active_param_s, energy_j_per_step, tokens_per_j, energy_source, window_s, sample_interval_s, peak_flops,
peak_flops_source, auxiliary_loss, expert_load_imbalance, al_s_p50_ci_low, al_s_p50_ci_high, al_s_block_steps,
al_s_drift_ratio, al_s_drift_ratio_low, al_s_drift_ratio_high, al_s_drift_p, al_s_drift_flagged, outlier_steps,
validation_loss_se, tokens_trained, tokens_per_parameter, unique_tokens, epochs, unigram_entropy,
exposed_communication_s, pipeline_bubble_s, supervised_tokens, supervised_tokens_per_s, energy_j_per_supervised_token
"""


def test_columns_stay_in_published_order(tmp_path: Path) -> None:
    (tmp_path / "report.csv").write_text(runs_csv([make_record()]))
    header = (tmp_path / "report.csv").read_text().splitlines()[0].split(",")
    settled = SETTLED_COLUMNS.replace(",", " ").split()
    assert header[: len(settled)] == settled
    assert header[-1] == "unavailable"
    assert len(set(header)) == len(header)


def test_each_run_has_one_row_with_full_precision_and_reasons(tmp_path: Path) -> None:
    energy = 0.1 + 0.2
    first = make_record({"energy_j": energy, "smoke": True}, reason="no sensor, it says, was there")
    second = make_record({"run": "mqa_1.5B", "al_s": 0.5})
    (tmp_path / "report.csv").write_text(runs_csv([first, second]))
    one, other = read_csv(tmp_path / "report.csv")
    assert (one["run"], one["smoke"], one["pcu"], float(one["energy_j"])) == ("gqa_1.5B", "true", "n/a", energy)
    assert "pcu: no sensor, it says, was there" in one["unavailable"].split(" | ")
    assert (other["run"], other["al_s"]) == ("mqa_1.5B", "0.5")


def test_the_table_prints_na_and_each_reason_once() -> None:
    measured = {"al_s": 0.25, "al_s_ci_low": 0.245, "al_s_ci_high": 0.255, "tokens_per_s": 8192.0}
    records = [
        make_record(measured, reason="no power sensor"),
        make_record({**measured, "run": "mqa_1.5B", "mfu": 0.413}, reason="no power sensor"),
    ]
    text = printed(print_results, records, width=100)
    for figure in ("250.0", "±2.0%", "41.3%"):
        assert figure in text
    [reason] = [line for line in text.splitlines() if "no power sensor" in line]
    assert re.match("n/a .*AEC W", reason)
    some = printed(print_results, [make_record({}, "nothing"), make_record({"run": "mqa_1.5B"}, "other")], width=200)
    assert "(mqa_1.5B): other" in some


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_every_column_is_printed_in_full_at_any_width(width: int) -> None:
    record = make_record({"al_s": 12.5, "validation_loss": 3.25, "perplexity": 25.8, "smoke": True})
    text = printed(print_results, [record], width=width)
    assert max(map(len, text.splitlines())) <= width
    for shown in (*(column.title for column in HEADLINE.values()), "12,500.0", "3.250", "25.8", "1.54B"):
        assert shown in text
    assert "…" not in text


def test_smoke_and_unfinished_runs_are_labelled() -> None:
    records = [make_record({"smoke": True}), make_record({"run": "[red]mqa[/red]", "status": "stopped"})]
    text = printed(print_results, records, width=120)
    for shown in ("gqa_1.5B (smoke)", "[red]mqa[/red] (stopped)", "do not stand for the named one's"):
        assert shown in text
    assert "do not stand" not in printed(print_results, [make_record()], width=120)


def test_records_in_subfolders_are_found_and_damaged_ones_named(tmp_path: Path) -> None:
    write_record(make_record({"run": "b"}), tmp_path / "suite" / "b" / "record.json")
    write_record(make_record({"run": "a"}), tmp_path / "suite" / "deep" / "er" / "a" / "record.json")
    broken = tmp_path / "suite" / "c" / "record.json"
    broken.parent.mkdir()
    broken.write_text("{")
    records, [damaged] = load_records(tmp_path)
    assert [record.run for record in records] == ["a", "b"]
    assert damaged.startswith(f"{broken}: ")
    for place, message in (
        (tmp_path / "nowhere", "no such folder"),
        (broken, "is a file; give the folder"),
        (tmp_path / ("x" * 300), "cannot be read .File name too long"),  # as for a folder that others may not enter
    ):
        with pytest.raises(MetricsError, match=message):
            load_records(place)


def test_replaced_and_traced_records_are_reported_only_on_request(tmp_path: Path) -> None:
    write_record(make_record({"seed": 2}), tmp_path / "a" / "record.json")
    write_record(make_record({"seed": 1}), tmp_path / "a" / "previous" / "monday" / "record.json")
    write_record(make_record({"seed": 3}), tmp_path / "a" / "profile" / "record.json")
    assert [record.seed for record in load_records(tmp_path)[0]] == [2]
    assert [record.seed for record in load_records(tmp_path / "a" / "previous")[0]] == [1]
    # Slowed by being traced, it is no figure of the run.
    assert [record.seed for record in load_records(tmp_path / "a" / "profile")[0]] == [3]


def test_reports_are_made_without_torch(tmp_path: Path) -> None:
    write_record(make_record(), tmp_path / "record.json")
    program = f"""
import sys
for name in ("torch", "megatron", "pynvml"):
    sys.modules[name] = None  # any import of it fails
from pathlib import Path
from rich.console import Console
import efficientbench.metrics.sensors.hardware
import efficientbench.metrics.records.environment
import efficientbench.metrics.records.sinks.steplog
import efficientbench.metrics.records.summarize
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.records.plausible import load_records
from efficientbench.metrics.report.headline import print_results
from efficientbench.metrics.records.sinks.tensorboard import TensorBoardLog
records, damaged = load_records(Path({str(tmp_path)!r}))
print_results(records, Console(width=100))
build_report(Path({str(tmp_path)!r}), paper=True)
TensorBoardLog(Path({str(tmp_path)!r}) / "tensorboard").close()
assert not damaged
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "gqa_1.5B" in done.stdout


def test_figures_of_other_benchmarks_tables_follow_from_the_records(tmp_path: Path) -> None:
    measured = {
        **{"al_s": 0.25, "tokens_per_s": 16384.0, "tokens_per_s_per_device": 4096.0, "hfu": 0.5, "peak_flops": 300e12},
        **{"dp": 4, "devices": 4, "micro_batch_size": 2, "global_batch_size": 16, "seq_len": 1024},
        "config": {"training": {"recompute": "full"}},
    }
    (tmp_path / "report.csv").write_text(runs_csv([make_record(measured), make_record(reason="no step was measured")]))
    full, bare = read_csv(tmp_path / "report.csv")
    texts = {"model": "gqa_1.5B", "recompute": "full", "formula_id": FORMULAS}
    counts = {"gradient_accumulation_steps": "2", "global_batch_size_tokens": "16384"}
    assert full.items() >= (texts | counts).items()
    expected = {
        "elapsed_time_per_iteration_ms": 250.0,
        "samples_per_s": 16.0,
        "model_tflops_per_device": 9.0e9 * 4096 / 1e12,
        "hardware_tflops_per_device": 150.0,
    }
    assert {name: float(full[name]) for name in expected} == pytest.approx(expected)
    reasons = bare["unavailable"].split(" | ")
    absent = [name for name, value in bare.items() if value == "n/a"]
    assert len(absent) > 40
    assert [reason.partition(":")[0] for reason in reasons] == sorted(absent)
    assert "samples_per_s: no step was measured" in reasons


def test_a_sparse_attention_that_reads_more_than_dense_is_flagged() -> None:
    more = make_record({"run": "nsa_1.5B", "keys_read_per_query": 1294.6, "dense_keys_per_query": 1024.5})
    fewer = make_record({"run": "nsa_3B", "keys_read_per_query": 900.0, "dense_keys_per_query": 1024.5})
    dense = make_record({"run": "gqa_3B", "keys_read_per_query": 1024.5, "dense_keys_per_query": 1024.5})
    text = printed(print_results, [more, fewer, dense], width=200)
    assert "nsa_1.5B: sparse in name alone at sequence 2,048, where a query reads 1,295 keys" in text
    assert text.count("sparse in name") == 1


def test_all_reports_are_written_and_rewritten(tmp_path: Path) -> None:
    write_record(make_record({"al_s": 0.5}), tmp_path / "a" / "record.json")
    for _ in range(2):
        made = build_report(tmp_path, paper=True)
        assert [path.name for path in made.written] == ["paper.md", "report.html", "report.md", "hparams", "report.csv"]
        assert all(path.exists() for path in made.written)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", *sorted(path.name for path in made.written)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"no run's record \(record.json\) lies below it: give the folder"),
        ("{", r"none of the 1 records below it can be read; the first: .*record.json: damaged, it is no JSON"),
    ],
)
def test_a_folder_without_a_readable_record_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "record.json").write_text(content)
    with pytest.raises(MetricsError, match=message):
        build_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_markdown_escapes_text_of_a_record() -> None:
    text = markdown(Report(make_rows([make_record({"run": "a|b\n<script>"}, reason="it | broke\n# off")]), ["c`d"]))
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 2
    for table in tables:
        assert all(line.replace(r"\|", "").count("|") == table[0].count("|") for line in table)
    assert "<script>" not in text
    for escaped in (r"it \| broke # off", r"c\`d"):
        assert escaped in text


def test_tensorboard_reads_the_hparams(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    records = [make_record({"al_s": 0.5, "run": "a/b"}), make_record({"run": "a/b", "status": "failed"})]
    for place, record in enumerate(records):
        write_record(record, tmp_path / str(place) / "record.json")
    build_report(tmp_path)
    assert sorted(path.name for path in (tmp_path / "hparams").iterdir()) == ["a_b", "a_b_2"]
    events = EventAccumulator(str(tmp_path / "hparams" / "a_b")).Reload()
    assert [event.value for event in events.Scalars("al_s")] == [0.5]
    tags = events.PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(tags[metadata.SESSION_START_INFO_TAG])
    assert (start.hparams["variant"].string_value, start.hparams["seq_len"].number_value) == ("gqa", 2048)
    end = metadata.parse_session_end_info_plugin_data(tags[metadata.SESSION_END_INFO_TAG])
    assert end.end_time_secs - start.start_time_secs == pytest.approx(12.5)
    assert "al_s" not in EventAccumulator(str(tmp_path / "hparams" / "a_b_2")).Reload().Tags()["scalars"]


def test_runs_in_a_folder_named_like_the_report_are_not_overwritten(tmp_path: Path) -> None:
    write_record(make_record(), tmp_path / "hparams" / "gqa" / RECORD_NAME)
    with pytest.raises(MetricsError, match="holds files that no report wrote"):
        build_report(tmp_path)
    assert (tmp_path / "hparams" / "gqa" / RECORD_NAME).exists()


def test_silent_bit_errors_are_reported_with_rank_and_device() -> None:
    rechecks = Rechecks(9, 2, [Mismatch(4, 3, "node7, cuda 3 (H100)", "the loss")])
    record = make_record({"rechecks": rechecks, "nondeterministic": {"attention": "it is from outside"}})
    text = printed(print_results, [record], width=400)
    assert "gqa_1.5B: bits differed in 2 of 9 rechecks: rank 3 (node7, cuda 3 (H100)) computed the loss twice" in text
    assert "These may compute other bits by themselves: attention." in text
    assert "bits differed" not in printed(print_results, [make_record({"rechecks": Rechecks(9, 0, [])})])
    assert combine(Group((record, record))).rechecks == Rechecks(18, 4, 2 * rechecks.mismatches)
