"""Names the files of a report that carry no checksum of their own, so that damage in them would not be found."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.metrics.records.generation.generation import GenerationRecord
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.sections.evaluations import Evaluated
from efficientbench.metrics.report.table import shortened

TITLE = "Without a checksum of their own"
WHY = "Damage in these files would not be found: an earlier version wrote them, or another tool."
_MOST_NAMED = 8


def without_checksum(
    records: Sequence[RunRecord], generations: Sequence[GenerationRecord], evaluated: Sequence[Evaluated]
) -> list[str]:
    """Return a name for each file without a checksum: the run's, followed by the content unless it is training."""
    names = [record.run for record in records if record.sha256 is None]
    names += [f"{record.run} (generation)" for record in generations if record.sha256 is None]
    return names + [f"{each.run} ({each.task})" for each in evaluated if not each.checked]


def checksum_note(names: Sequence[str]) -> str:
    """Return one line that names the first of these files, and says what a missing checksum means."""
    return f"{TITLE}: {shortened(names, _MOST_NAMED)}. {WHY}"
