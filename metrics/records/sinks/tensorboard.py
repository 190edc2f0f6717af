"""Writes TensorBoard scalars without torch or TensorFlow.

Runs overlay when they use the same names: train/loss, train/learning_rate, train/grad_norm, validation/loss,
efficiency/step_time_s, efficiency/tokens_per_s, memory/used_gb (of the device that uses most), energy/power_w (of all
devices that rank 0 reads). Runs of other batch sizes differ in the tokens of a step: by_tokens/train_loss and
by_tokens/validation_loss count tokens on the axis of steps. For seconds there is TensorBoard's own axis RELATIVE.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from efficientbench.basics.errors import MetricsError, os_errors_as
from efficientbench.metrics.files import whole_file
from efficientbench.metrics.records.sinks.steplog import cut_steps

FRAME_BYTES = 16
"""Bytes around each event of a file: its length, and the checksums of length and event."""


def cut_logs(steps: Path, scalars: Path, step: int, tokens: int) -> list[str]:
    """Cut the logs of a run that resumes after step `step`, since it trains the later steps again, and print each loss.

    Args:
        steps: the run's `steps.jsonl`.
        scalars: its folder of event files.
        step: the last step that stays.
        tokens: tokens trained on by then; of no effect on a run that logs nothing by tokens, as a fine-tuning.

    Returns:
        A message on each loss by damage.

    Raises:
        MetricsError: a log cannot be read or written.
    """
    cut = cut_steps(steps, step)
    lost = [*([] if cut is None else [cut]), *cut_scalars(scalars, step, tokens)]
    for message in lost:
        print(f"warning: {message}", flush=True)
    return lost


def cut_scalars(folder: Path, step: int, tokens: int) -> list[str]:
    """Cut a folder's event files off after step `step`, for a run that resumes there.

    Each file is written beside the old one, with its events' times, and renamed: after a kill, the same call cuts the
    rest. Everything after a damaged event is dropped, and so is the torn end that a killed run may leave.

    Args:
        folder: the folder of one run.
        step: the last step that stays.
        tokens: tokens trained on by then, the last value that stays on the axis of tokens.

    Returns:
        For each file that lost scalars up to `step`, a message on the loss.

    Raises:
        MetricsError: tensorboard is not installed, or the folder cannot be written.
    """
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        raise MetricsError("TensorBoard is not installed: pip install 'efficientbench[metrics]'") from None
    lost = []
    for path in sorted(path for path in folder.glob("events.out.tfevents.*") if path.is_file()):
        size_bytes, read_bytes, last_step = path.stat().st_size, 0, 0
        with whole_file(path) as file, suppress(DecodeError):
            writer = RecordWriter(file)
            for content in RawEventFileLoader(str(path)).Load():
                event = Event.FromString(content)
                read_bytes += len(content) + FRAME_BYTES
                by_tokens = any(value.tag.startswith("by_tokens/") for value in event.summary.value)
                last_step = last_step if by_tokens else max(last_step, event.step)
                # The file's first event is no summary: it holds the file's version.
                if not event.HasField("summary") or event.step <= (tokens if by_tokens else step):
                    writer.write(content)
        if read_bytes < size_bytes and last_step < step:
            lost.append(f"{path.name}: damaged, its scalars after step {last_step:,} are lost")
    return lost


class TensorBoardLog:
    """Writes one run's scalars into a folder of its own.

    Raises:
        MetricsError: tensorboard is not installed, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise MetricsError("TensorBoard is not installed: pip install 'efficientbench[metrics]'") from None
        with os_errors_as(MetricsError, f"{folder}: cannot be written"):
            self._writer = EventFileWriter(str(folder), flush_secs=10)

    def scalars(self, axis: str, place: int, values: Mapping[str, float | None]) -> None:
        """Write values by name at a place on the axis `step` or `tokens`; skip a value of None."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        given = [Summary.Value(tag=name, simple_value=value) for name, value in values.items() if value is not None]
        self._writer.add_event(Event(wall_time=time.time(), step=place, summary=Summary(value=given)))

    def figures(self, values: Mapping[str, Any]) -> None:
        """Write nothing: a report writes the figures of all runs together, as HParams."""

    def close(self) -> None:
        self._writer.close()
