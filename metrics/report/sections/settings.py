"""The table of the runs' settings: model, budget, layout."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.metrics.report.plots.svg import Run
from efficientbench.metrics.report.table import Table, number


def settings_table(runs: Sequence[Run]) -> Table:
    """Return a row for each run."""
    header = (
        *("run", "status", "parameters", "active", "dtype", "sequence", "micro batch", "global batch", "layout"),
        *("steps", "tokens", "tokens/param", "unique tokens", "epochs", "keys/query", "seed", "duration"),
    )
    rows = []
    for run in runs:
        record = run.record
        sizes = {axis: getattr(record, axis) for axis in ("tp", "pp", "dp", "cp", "ep")}
        layout = " ".join(f"{axis}{size}" for axis, size in sizes.items() if size > 1)
        keys = number(record.keys_read_per_query, ",.0f")
        if record.dense_keys_per_query is not None:
            keys += f" of {record.dense_keys_per_query:,.0f}"
        rows.append(
            (
                *(run.name, record.status, number(record.parameters, ","), number(record.parameters_active, ",")),
                record.dtype,
                *(f"{record.seq_len:,}", f"{record.micro_batch_size:,}", f"{record.global_batch_size:,}"),
                *(layout or "1 rank", f"{record.steps_measured:,}", f"{record.tokens:,}"),
                number(record.tokens_per_parameter, ".3g"),
                *(number(record.unique_tokens, ","), number(record.epochs, ".3g"), keys, str(record.seed)),
                f"{record.duration_s:,.0f} s",
            )
        )
    return Table(header, rows, (0, 1, 4, 8))
