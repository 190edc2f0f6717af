"""Tables of plans: of one run, or of all runs of the matrix."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from efficientbench.architecture.backbone import CHOICES
from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.variant import known, shown
from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.basics.language import in_users_language
from efficientbench.config.layout import Layout
from efficientbench.config.matrix import HYBRIDS, by_name, load_matrix
from efficientbench.config.schema import RunConfig
from efficientbench.config.training import TrainingConfig
from efficientbench.costs.compute import micro_batch_work
from efficientbench.costs.model import (
    COUNTER_BYTES,
    STATE_TOKENS,
    cache_bytes,
    dense_keys_per_query,
    keys_read_per_query,
    kv_cache_bytes_per_token,
    layer_parameters,
)
from efficientbench.planning.matching import told_match
from efficientbench.planning.plan import (
    Plan,
    determinism,
    gigabytes,
    hidden,
    known_corpora,
    memory_parts,
    plan_anywhere,
    planned_device,
)
from efficientbench.planning.table import ABSENT, plain_table, print_lines
from efficientbench.planning.text import text_budget, text_of, tokenized
from efficientbench.planning.vocabulary import resolve_run

Made = TypeVar("Made")


def print_plan(plan: Plan, console: Console) -> None:
    """Print a plan as two tables, with its notes."""
    run = Table(title=in_users_language(f"plan of {plan.config.name}"), show_header=False, title_justify="left")
    for row in _run_rows(plan):
        run.add_row(*map(in_users_language, row))
    console.print(run)
    if known(lambda: plan.memory) is not None:
        console.print(_memory_table(plan))
    device = planned_device(plan.config)
    warnings = (hidden(plan.config), device.dtype_warning(plan.config.training.dtype))
    print_lines(console, (f"warning: {warning}" for warning in warnings if warning))
    print_lines(console, filter(None, (determinism(plan.config, device), plan.budget.extended)))


def _memory_table(plan: Plan) -> Table:
    memory = Table(title=in_users_language("peak memory of a rank, GB"), title_justify="left")
    memory.add_column(in_users_language("part"))
    for stage in range(plan.layout.pp):
        heading = f"stage {stage}" if plan.layout.pp > 1 else "estimate"
        memory.add_column(in_users_language(heading), justify="right")
    columns = [memory_parts(stage) for stage in plan.memory]
    for row_index, (name, _) in enumerate(columns[0]):
        if name == "muon momentum" and plan.config.training.optimizer != "muon":
            continue
        memory.add_row(in_users_language(name), *(f"{column[row_index][1] / 1e9:.3f}" for column in columns))
    memory.add_row(in_users_language("total"), *(f"{stage.total / 1e9:.3f}" for stage in plan.memory), style="bold")
    return memory


def print_matrix(overrides: Sequence[str], smoke: bool) -> None:
    """Print one row for each run of the matrix, all with the same overrides.

    Raises ConfigError: the overrides fit none of the runs.
    """
    plans, refused = of_each_run(lambda name: plan_anywhere(resolve_run(name, smoke, overrides)[0]))
    rows = ((plan.config.name, *_matrix_row(plan)) for plan in plans)
    # A row stays on one line, however narrow the terminal is.
    console = Console(width=_LINE, highlight=False, soft_wrap=True)
    console.print(plain_table("run", _MATRIX_COLUMNS, rows, "the matrix, planned"))
    print_lines(console, _matrix_notes(plans) + refused)


def of_each_run(make: Callable[[str], Made]) -> tuple[list[Made], list[str]]:
    """Return the results of `make` for the runs of the matrix and of hybrids.yaml, and a line for each refused run.

    Raises ConfigError: `make` refuses all runs.
    """
    found, refused, first = [], [], None
    matrix = load_matrix()
    hybrids = (run for run in matrix.all_runs if run.suite == HYBRIDS.stem)
    for name in by_name((*matrix.runs, *hybrids)):
        try:
            found.append(make(name))
        except ConfigError as error:
            first = first or error
            refused.append(f"{name}: {error}")
    if first is not None and not found:
        raise first
    return found, refused


_LINE = 200
"""Width of the table in characters, more than a row has."""

_MATRIX_COLUMNS = (
    "parameters",
    "active",
    "FLOPs/token",
    "keys/query",
    "KV cache B/token",
    "tokens/param",
    "sequence",
    "micro-batch",
    "ranks",
    "MB at 32k",
    "GB/rank",
)


def _matrix_row(plan: Plan) -> tuple[str, ...]:
    model, training, budget = plan.config.model, plan.config.training, plan.budget
    figures: tuple[Callable[[], str], ...] = (
        lambda: f"{plan.parameters.total:,}",
        lambda: f"{plan.parameters.active:,}",
        lambda: f"{plan.flops.training:,}",
        lambda: f"{keys_read_per_query(model, plan.attended_tokens):,.1f}",
        lambda: f"{kv_cache_bytes_per_token(model, training.dtype):,}",
        lambda: f"{budget.tokens / plan.parameters.total:.2g}" if budget.counted else "n/a",
        lambda: f"{training.seq_len:,}",
        lambda: f"{training.micro_batch_size}",
        lambda: f"{plan.layout.world_size}",
        lambda: f"{cache_bytes(model, 32_768, training.dtype) / 1e6:,.0f}",
        lambda: f"{plan.rank_memory_bytes() / 1e9:.2f}",
    )
    return tuple(known(figure) or ABSENT for figure in figures)


def _matrix_notes(plans: Sequence[Plan]) -> list[str]:
    """Return the meaning of the columns, and the runs that read no fewer keys than dense attention."""
    first = plans[0].config
    device = "cpu" if first.device == "auto" else first.device
    notes = [
        f"FLOPs/token: training, causal attention halved. KV cache in {first.training.dtype}; MB at 32k: that of "
        f"a sequence of 32,768 tokens. GB/rank: peak of the "
        f"largest rank on a device of type {device}; device=cuda or device=npu plans for those."
    ]
    for plan in plans:
        seq_len = plan.config.training.seq_len
        dense, model = dense_keys_per_query(seq_len), plan.config.model
        read = known(partial(keys_read_per_query, model, seq_len))
        if read is not None and read > dense:
            notes.append(f"{plan.config.name}: keys read per query are NOT fewer than dense attention's {dense:,.1f}")
    return notes


def _keys_read(plan: Plan) -> str:
    """Format the mean number of keys that a query reads, with dense attention's where that differs."""
    model, seq_len = plan.config.model, plan.attended_tokens
    read, dense = keys_read_per_query(model, seq_len), dense_keys_per_query(seq_len)
    if read == dense:
        return f"{read:,.1f}"
    return f"{read:,.1f}, dense {dense:,.1f}" + ("" if read < dense else ": NOT fewer; it pays at longer sequences")


def _text_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows of the text that the model reads, and the reason if its losses say nothing of the model."""
    missing = []
    try:
        text = text_of(plan)
    except DataError as error:
        # A plan may precede its text.
        text, missing = text_budget(plan, tokenized(plan.config.data)), [("text", f"n/a: {error}")]
    writes = plan.config.training.objective == "rl"
    unknown = "n/a: " + (
        "the model writes what it learns from" if writes else "a run counts them once the text is tokenized"
    )
    per_parameter = shown(lambda: f"{plan.budget.tokens / plan.parameters.total:.3g}")
    asked = plan.config.training.epochs
    rows = [
        ("tokens per parameter", per_parameter if plan.budget.counted else unknown),
        ("unique tokens", unknown if text.unique_tokens is None else f"about {text.unique_tokens:,}"),
        ("epochs", f"{asked:,}" if asked else text.epochs_text or unknown),
        *missing,
    ]
    return [*rows, ("speed only", text.speed_only_reason)] if text.speed_only_reason else rows


def _backbone_rows(model: ModelConfig) -> list[tuple[str, str]]:
    """Return the row of the backbone's differences from Qwen2.5's beside its shapes; no row without any."""
    fields = type(model).model_fields
    changed = [f"{key}={json.dumps(value)}" for key in CHOICES if (value := getattr(model, key)) != fields[key].default]
    return [("backbone", ", ".join(changed).replace('"', ""))] if changed else []


def _pattern_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows of the kinds of layers; no rows where layers are alike."""
    model = plan.config.model
    if model.pattern is None:
        return []

    def by_kind() -> str:
        sums = (layers * layer_parameters(view) for view, layers in model.counted_views)
        return ", ".join(f"{name} {count:,}" for name, count in zip(model.views, sums, strict=True))

    return [("layers by kind", model.told_kinds or ""), ("  parameters by kind", shown(by_kind)), *_stage_rows(plan)]


def _stage_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the row of how unequal pipeline stages are; no row where there is one."""
    if plan.layout.pp == 1:
        return []

    def ratio() -> str:
        works = [micro_batch_work(plan.config, plan.layout, stage) for stage in range(plan.layout.pp)]
        flops = [sum(part.flops for parts in work.values() for part in parts) for work in works]
        return f"{max(flops) * len(flops) / sum(flops):.3f}, in FLOPs"

    return [("  slowest stage ÷ mean", shown(ratio))]


def _state_rows(config: RunConfig) -> list[tuple[str, str]]:
    """Return the rows of what decoding keeps of a sequence; layers with a window keep no more for further tokens."""
    model, dtype = config.model, config.training.dtype
    added = shown(lambda: f"{kv_cache_bytes_per_token(model, dtype):,} B")
    at_once = ("cache of a sequence", shown(lambda: f"{cache_bytes(model, config.training.seq_len, dtype):,} B"))
    alike = model.pattern is None and known(lambda: model.attention_variant.costs.cached(model)) != 0
    if alike:
        return [("KV cache per token", added), at_once]

    def constant() -> str:
        most = STATE_TOKENS[-1]
        kept = cache_bytes(model, most, dtype) - COUNTER_BYTES - most * kv_cache_bytes_per_token(model, dtype)
        return f"{added}, beside {kept:,} B that are constant"

    lengths = ", ".join(f"{tokens // 1024}k" for tokens in STATE_TOKENS)

    def sizes() -> str:
        return ", ".join(f"{cache_bytes(model, tokens, dtype) / 1e6:,.0f}" for tokens in STATE_TOKENS) + " MB"

    return [("state a token adds", shown(constant)), at_once, (f"  at {lengths} tokens", shown(sizes))]


def _optimizer_rows(training: TrainingConfig) -> list[tuple[str, str]]:
    """Return the row of the optimizer that updates the layers' matrices; no row for AdamW."""
    if training.optimizer == "adamw":
        return []
    return [("optimizer", f"muon ({training.matrix_rate:g}) for layers' matrices; not the distributed optimizer")]


def _document_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the row of the documents with which attention ends; no row where it goes on."""
    if not plan.config.data.attention_within_documents:
        return []
    counted = f"FLOPs and keys read are those of documents of their mean length, {plan.attended_tokens:,} tokens"
    if known_corpora(plan.config.data) is None:
        counted = "documents count as whole sequences, since their text is not tokenized yet"
    return [("attention", f"within documents; {counted}")]


def _rollout_rows(config: RunConfig, layout: Layout) -> list[tuple[str, str]]:
    """Return the row of the memory that a rank needs to sample answers; no row where it samples none."""
    rl, training, model = config.rl, config.training, config.model
    if training.objective != "rl":
        return []
    questions = -(-training.global_batch_size // rl.samples // layout.dp)
    answers = min(max(rl.batch // rl.samples, 1), questions) * rl.samples
    # As many positions as the update computes, and one token after the last.
    each = partial(cache_bytes, model, training.seq_len + 1, training.dtype, layout.tp)
    size = shown(lambda: f"at most {gigabytes(answers * each())} on a rank")
    return [("cache of rollouts", f"{size}, for {answers:,} answers; not in the estimate")]


def _run_rows(plan: Plan) -> list[tuple[str, str]]:
    config, layout, budget = plan.config, plan.layout, plan.budget
    training, flops = config.training, known(lambda: plan.flops)
    cp = f" × cp {layout.cp}" if layout.cp > 1 else ""
    grid = f"{layout.world_size} = tp {layout.tp}{cp} × pp {layout.pp} × dp {layout.dp}"
    if layout.ep > 1:
        grid += f", experts over ep {layout.ep}"
    read = "questions" if training.objective == "rl" else "text"
    uncounted = f"n/a: as many as {plan.length.partition(' in ')[0]} of the {read} take"
    batch = f"{training.global_batch_size} = micro-batch {training.micro_batch_size} × {layout.micro_batches} × dp"
    return [
        ("parameters, total", shown(lambda: f"{plan.parameters.total:,}")),
        ("parameters, active", shown(lambda: f"{plan.parameters.active:,}")),
        *([("matched", told_match(config))] if config.match else []),
        *_backbone_rows(config.model),
        *_pattern_rows(plan),
        ("FLOPs per token, training", shown(lambda: f"{plan.flops.training:,}")),
        ("  attention as full square", shown(lambda: f"{plan.flops.training_full_square:,}")),
        *([("  with recomputation", f"{flops.training_hardware:,}")] if flops and flops.recomputed else []),
        ("keys read per query", shown(lambda: _keys_read(plan))),
        *_state_rows(config),
        ("sequence", f"{training.seq_len:,} tokens, {training.dtype}"),
        ("batch, in sequences", f"{batch} {layout.dp}"),
        *_document_rows(plan),
        *_optimizer_rows(training),
        *_rollout_rows(config, layout),
        ("tokens per step", f"{budget.tokens_per_step:,}"),
        ("steps", f"{budget.steps:,}, the first {budget.warmup_steps:,} not measured" if budget.counted else uncounted),
        ("tokens", f"{budget.tokens:,}" if budget.counted else uncounted),
        *_text_rows(plan),
        ("ranks", grid + (", sequence-parallel" if layout.sp else "")),
        *([("", "dp is not set: a run on accelerators takes all of them")] if config.parallel.dp is None else []),
        ("layers per stage", f"{layout.layers_per_stage:,}" + (f", {layout.vpp} virtual" if layout.vpp > 1 else "")),
        ("memory of a node's ranks", shown(lambda: gigabytes(plan.node_memory_bytes()))),
    ]
