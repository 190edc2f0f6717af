"""Writes each run's settings and figures for TensorBoard's HParams tab, which shows them in one table.

The tab reads a run's metrics from the folder of its settings. So each run gets a folder of its own here, apart from the
scalars that it wrote while it trained.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from efficientbench.basics.errors import MetricsError, os_errors_as
from efficientbench.metrics.records.figures import Identity
from efficientbench.metrics.records.record import FIGURES, RunRecord
from efficientbench.metrics.report.columns import row
from efficientbench.metrics.report.sections.generation import Generated

HPARAMS_FOLDER = "hparams"
SETTINGS = (*Identity.model_fields, "recompute", "formula_id", "speed_only", "tokens_per_parameter")
FIGURES_SHOWN = [name for name, row in FIGURES.items() if (row.better or row.headline) and name not in SETTINGS]
"""Figures that distinguish runs: those of the table of results, and those of which lower or higher is better."""


GENERATED = (
    *("decode_tokens_per_s", "decode_time_s", "decode_energy_j_per_token", "prefill_tokens_per_s", "ttft_s"),
    *("cache_bytes", "bandwidth_utilization"),
)
"""Figures of generation that are written as scalars over the context length in tokens."""


def write_hparams(records: Sequence[RunRecord], folder: Path, generated: Sequence[Generated] = ()) -> None:
    """Write one subfolder a run, replacing what an earlier report wrote there.

    Figures of generation go beside the training of the same run, as scalars `generation/batch_<batch>/<figure>` whose
    steps are the context length in tokens.

    Raises:
        MetricsError: the folder cannot be written, or holds files that no report wrote.
    """
    if any(path.is_file() and ".tfevents." not in path.name for path in folder.rglob("*")):
        raise MetricsError(f"{folder}: holds files that no report wrote; move them away, since a report's go there")
    with os_errors_as(MetricsError, f"{folder}: cannot be written"):
        if folder.exists():
            shutil.rmtree(folder)
        taken: set[str] = set()
        names = [_free(record.run + ("_smoke" if record.smoke else ""), taken) for record in records]
        for record, name in zip(records, names, strict=True):
            _write_run(record, folder / name)
        for number, each in enumerate(generated, start=1):
            name = _free(each.name, taken) if each.trained is None else names[each.trained]
            _write_generated(each, folder / name, number)


def _free(name: str, taken: set[str]) -> str:
    """Return a folder name for a run that is not in `taken`, and add it there."""
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name).lstrip(".") or "run"
    # Leave room for a number, within a file system's limit.
    plain = plain.encode()[:240].decode(errors="ignore")
    free, count = plain, 1
    while free in taken:
        count += 1
        free = f"{plain}_{count}"
    taken.add(free)
    return free


def _write_run(record: RunRecord, folder: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    values, _ = row(record)
    begin_s = datetime.fromisoformat(record.started_at).timestamp()
    end_s = begin_s + record.duration_s
    given = {name: values[name] for name in SETTINGS if values[name] is not None}
    settings = {name: value if isinstance(value, str | float | int) else str(value) for name, value in given.items()}
    state = {"completed": "STATUS_SUCCESS", "stopped": "STATUS_UNKNOWN", "failed": "STATUS_FAILURE"}[record.status]
    end = plugin_data_pb2.SessionEndInfo(
        status=plugin_data_pb2.DESCRIPTOR.pool.FindEnumTypeByName("tensorboard.hparams.Status")
        .values_by_name[state]
        .number,
        end_time_secs=end_s,
    )
    ended = Summary()
    ended.value.add(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=end)),
        tensor=metadata.NULL_TENSOR,
    )
    figures = Summary(
        value=[Summary.Value(tag=name, simple_value=values[name]) for name in FIGURES_SHOWN if values[name] is not None]
    )
    summaries = (hparams_pb(settings, trial_id=folder.name, start_time_secs=begin_s), figures, ended)
    events = [Event(wall_time=end_s, step=record.tokens, summary=summary) for summary in summaries]
    _write_events(folder, begin_s, "report", events)


def _write_generated(each: Generated, folder: Path, number: int) -> None:
    """Write a file of scalars; `number` distinguishes it from a copied folder's file, which has the same start time."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    begin_s = datetime.fromisoformat(each.record.started_at).timestamp()
    events = []
    for made in each.record.rows:
        figures = {f"generation/batch_{made.batch}/{name}": made.value(name) for name in GENERATED}
        given = [Summary.Value(tag=tag, simple_value=value) for tag, value in figures.items() if value is not None]
        context = made.prompt_tokens + made.max_new_tokens
        events.append(Event(wall_time=begin_s, step=context, summary=Summary(value=given)))
    _write_events(folder, begin_s, f"generation_{number}", events)


def _write_events(folder: Path, begin_s: float, ending: str, events: Sequence[Any]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"events.out.tfevents.{begin_s:.0f}.{ending}").open("xb") as file:
        writer = RecordWriter(file)
        for event in (Event(wall_time=begin_s, file_version="brain.Event:2"), *events):
            writer.write(event.SerializeToString())
        writer.flush()
