"""The command `efficientbench sweep`: many runs as one, or several architectures through a chat model's stages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from efficientbench.cli.options import (
    MODES,
    Axes,
    Data,
    Only,
    PricePerHour,
    Sizes,
    Smoke,
    Tokenizer,
    count,
    names,
    option,
    overrides_of,
    repeats,
    switch,
)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip().lower())
    if match is None or float(match[1]) == 0:
        raise typer.BadParameter(f"{text[:40]!r} is no time; write 90s, 30m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


TimeLimit = Annotated[
    float | None, typer.Option("--time-limit", metavar="TIME", parser=_seconds, help="of one run, like 90s, 30m or 2h")
]


def sweep(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MATRIX] [key=value]...",
            help="a matrix of runs (by default experiments/matrix.yaml), and keys that all runs get",
        ),
    ] = None,
    matrix: Annotated[
        Path | None, typer.Option("--matrix", metavar="FILE", help="MATRIX, as other commands take it")
    ] = None,
    only: Only = "",
    sizes: Sizes = "",
    axes: Axes = None,
    repeat: Annotated[int | None, repeats("each run N times, with consecutive seeds")] = None,
    jobs: Annotated[
        str, option("N|auto", "runs at once; auto: as many as have devices of their own, on a CPU one")
    ] = "auto",
    time_limit_s: TimeLimit = None,
    retry_failed: Annotated[bool, switch("--retry-failed", "run again what failed in an earlier call")] = False,
    retry_smaller: Annotated[
        bool,
        switch(
            "--retry-smaller",
            "out of memory: again with a smaller micro-batch at the same global batch, marked in the record",
        ),
    ] = False,
    generate: Annotated[
        bool, switch("--generate", "measure generation with each trained model, on one of its devices")
    ] = False,
    weights: Annotated[
        str | None, option("LIST", "with --generate: also with weights of these widths, like int8,int4")
    ] = None,
    dry_run: Annotated[
        bool, switch("--dry-run", "print the plan with estimates of time, memory and energy; run nothing")
    ] = False,
    device: Annotated[str | None, option("NAME", "with --dry-run: plan for this row of hardware.yaml")] = None,
    nodes: Annotated[int | None, count("with --device: machines that each run takes; 1")] = None,
    devices_per_node: Annotated[int | None, count("with --device: of each machine; 8")] = None,
    price_per_hour: PricePerHour = None,
    stages: Annotated[str, option("LIST", "base,mid,sft: each variant through these stages of a chat model")] = "",
    work: Annotated[Path | None, option("FOLDER", "with --stages: of a speedrun, for its data")] = None,
    smoke: Smoke = False,
    data: Data = None,
    tokenizer: Tokenizer = None,
) -> None:
    """Train, measure and report many runs; called again, it does what is missing."""
    if stages or work is not None:
        others = {
            **{"--set": axes, "--repeat": repeat, "--jobs": jobs != "auto", "--time-limit": time_limit_s},
            **{"--retry-failed": retry_failed, "--retry-smaller": retry_smaller, "--smoke": smoke},
            **{"--device": device, "--nodes": nodes, "--devices-per-node": devices_per_node},
            **{"--weights": weights, "--data": data, "--tokenizer": tokenizer, "--price-per-hour": price_per_hour},
            "--matrix": matrix,
        }
        raise typer.Exit(sweep_stages(stages, work, only, sizes, arguments or [], generate, dry_run, others))
    if weights and not generate:
        raise typer.BadParameter("--weights goes with --generate: what is measured with weights of these widths")
    if device is None and (nodes or devices_per_node):
        raise typer.BadParameter("--nodes and --devices-per-node go with --device NAME: what to plan for")
    if price_per_hour is not None and not dry_run:
        raise typer.BadParameter("--price-per-hour goes with --dry-run: what the runs would cost")
    if device is not None and not dry_run:
        raise typer.BadParameter("--device goes with --dry-run: a sweep runs on the devices of this machine")
    from efficientbench.config.matrix import MATRIX
    from efficientbench.config.quantization import FULL, split_widths
    from efficientbench.sweep.selection import Request
    from efficientbench.sweep.sweep import sweep as run_sweep

    widths, given = split_widths(names(weights or FULL), arguments or [])
    request = Request(
        matrix=_matrix(given, matrix) or MATRIX,
        only=names(only),
        sizes=names(sizes),
        axes=tuple(axes or ()),
        overrides=tuple(overrides_of([argument for argument in given if "=" in argument], data, tokenizer)),
        smoke=smoke,
        repeat=repeat,
        retry_smaller=retry_smaller,
        generate=generate,
        widths=tuple(filter(None, widths)),
    )
    cluster = None
    if device is not None:
        from efficientbench.sweep.machine import planned_machine

        cluster = planned_machine(device, nodes or 1, devices_per_node or 8)
    raise typer.Exit(run_sweep(request, jobs, time_limit_s, retry_failed, dry_run, cluster, price_per_hour))


def _matrix(given: Sequence[str], named: Path | None) -> Path | None:
    """Return the matrix that `--matrix` or an argument names, or None; refuse further words that are no key=value."""
    if any(argument in MODES for argument in given):
        raise typer.BadParameter("a sweep runs on this machine's devices; leave dsw and dlc out")
    matrices = [*([] if named is None else [str(named)]), *(argument for argument in given if "=" not in argument)]
    if len(matrices) > 1:
        raise typer.BadParameter(f"{matrices[1]!r}: one matrix is named already; a key is written key=value")
    return Path(matrices[0]).absolute() if matrices else None


def sweep_stages(
    stages: str,
    work: Path | None,
    only: str,
    sizes: str,
    given: Sequence[str],
    generate: bool,
    dry_run: bool,
    others: Mapping[str, object],
) -> int:
    """Train, evaluate and report variants on the data of a speedrun; return the exit code.

    Raises:
        BadParameter: an option that means nothing here, or no folder.
        ConfigError, DataError: as of `speedrun`.
    """
    if meant := [option for option, value in others.items() if value]:
        raise typer.BadParameter(f"{meant[0]} means nothing with --stages, whose runs are those of a speedrun")
    words = [word for word in given if "=" not in word]
    if words:
        raise typer.BadParameter(f"{words[0]!r}: the runs of --stages are in no matrix; a key is written key=value")
    depths = [re.fullmatch(r"d([1-9]\d{0,3})", size) for size in names(sizes)]
    if len(depths) > 1 or None in depths:
        raise typer.BadParameter(f"--sizes {sizes[:80]}: with --stages it is one depth, like d12")
    if work is None:
        raise typer.BadParameter("--stages goes with --work FOLDER: that of a speedrun, whose data the variants learn")
    from efficientbench.speedrun.perform import device_type, speedrun
    from efficientbench.speedrun.request import kept_request

    types = [word.removeprefix("device=") for word in given if word.startswith("device=")]
    request = replace(
        kept_request(work.absolute(), device_type(types[-1] if types else "auto")),
        stages=names(stages),
        variants=names(only),
        depth=next((int(each[1]) for each in depths if each), None),
        overrides=tuple(word for word in given if not word.startswith("device=")),
        generate=generate,
    )
    return speedrun(request, dry_run)
