"""The devices, machines and software of the runs, once for all runs that share them; the settings of each run."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.metrics.analysis.conditions import CONDITIONS
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.columns import state_bytes, told_kinds
from efficientbench.metrics.report.headline import name, with_names
from efficientbench.metrics.report.table import Table, bullets, escape, number


def environments(records: Sequence[RunRecord]) -> list[tuple[list[str], dict[str, str]]]:
    """Return the different environments, in the order of the runs: the runs' names, and the facts by name."""
    runs_by_facts: dict[tuple[tuple[str, str], ...], dict[str, None]] = {}
    for record in records:
        runs_by_facts.setdefault(tuple(_facts(record).items()), {})[name(record)] = None
    return [(list(runs), dict(facts)) for facts, runs in runs_by_facts.items()]


def listed_environments(records: Sequence[RunRecord]) -> list[str]:
    """Return the environments as paragraphs of Markdown: the runs' names, then the facts."""
    return [
        part
        for runs, facts in environments(records)
        for part in (f"**{escape(', '.join(runs))}**", bullets(f"{key}: {value}" for key, value in facts.items()))
    ]


def _facts(record: RunRecord) -> dict[str, str]:
    facts = {"device": f"{record.devices} × {record.device_name}"}
    for key, value in record.environment.items():
        if key == "packages" and isinstance(value, dict):
            installed = [f"{package} {version}" for package, version in value.items() if version]
            facts["packages"] = ", ".join(installed)
        elif key == "versions" and isinstance(value, dict):
            facts["versions"] = ", ".join(f"{part} {version}" for part, version in value.items())
        elif key == "sensors":
            continue  # their intervals differ in each run, which would make an environment of every run
        elif key.endswith("_bytes") and isinstance(value, int | float):
            facts[key.removesuffix("_bytes").replace("_", " ")] = f"{value / 1e9:,.1f} GB"
        elif value is not None:
            facts[key.replace("_", " ")] = str(value)
    facts |= _conditions(record)
    facts["kernels"] = "; ".join(f"{part}: {kernel}" for part, kernel in record.kernels.items())
    facts["fallbacks"] = "; ".join(f"{part}: {why}" for part, why in record.fallback_kernels.items())
    return {key: value for key, value in facts.items() if value}


def _conditions(record: RunRecord) -> dict[str, str]:
    """Return the limits of the devices and the traits of the machines, each different one once."""
    machines = record.machine_conditions
    kinds = {
        "limits": [CONDITIONS["limits"](record)] if machines or record.device_conditions else [],
        "container": [" ".join(filter(None, (each.container, each.image))) for each in machines],
        "network": [", ".join(each.network) for each in machines],
        "virtual machine": ["yes" for each in machines if each.is_virtual],
        "PCIe": [each.settings.pcie or "" for each in record.device_conditions],
    }
    return {name: "; ".join(dict.fromkeys(filter(None, texts))) for name, texts in kinds.items()}


def settings_table(records: Sequence[RunRecord]) -> Table:
    """Return a row for each run: its model, budget and layout."""
    header: tuple[str, ...] = (
        *("run", "status", "parameters", "active", "dtype", "sequence", "micro batch", "global batch", "layout"),
        *("steps", "tokens", "tokens/param", "unique tokens", "epochs", "keys/query", "seed", "duration"),
    )
    rows: list[tuple[str, ...]] = []
    for run, record in with_names(records):
        sizes = {axis: getattr(record, axis) for axis in ("tp", "pp", "dp", "cp", "ep")}
        layout = " ".join(f"{axis}{size}" for axis, size in sizes.items() if size > 1)
        keys = number(record.keys_read_per_query, ",.0f")
        if record.dense_keys_per_query is not None:
            keys += f" of {record.dense_keys_per_query:,.0f}"
        rows.append(
            (
                *(run, record.status, number(record.parameters, ","), number(record.parameters_active, ",")),
                record.dtype or "n/a",
                *(f"{record.seq_len:,}", f"{record.micro_batch_size:,}", f"{record.global_batch_size:,}"),
                *(layout or "1 rank", f"{record.steps_measured:,}", f"{record.tokens:,}"),
                number(record.tokens_per_parameter, ".3g"),
                *(number(record.unique_tokens, ","), number(record.epochs, ".3g"), keys, str(record.seed)),
                f"{record.duration_s:,.0f} s",
            )
        )
    kinds = [told_kinds(record) for record in records]
    if any(kinds):
        header = (*header, "layers", "state at 32k tokens")
        states = (number(state_bytes(record, 32_768), ",d") for record in records)
        rows = [(*row, kind or "alike", state) for row, kind, state in zip(rows, kinds, states, strict=True)]
    return Table(header, rows, (0, 1, 4, 8))
