"""The command `efficientbench study`: which of several architectures to pretrain."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Annotated

import typer

from efficientbench.cli.options import Data, PricePerHour, Smoke, Tokenizer, count, names, option, overrides_of, switch
from efficientbench.cli.sweep import TimeLimit


class Match(str, Enum):
    """What the models of a cell have in common."""

    FLOPS = "flops"
    PARAMETERS = "parameters"
    ACTIVE = "active"
    NONE = "none"


def study(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|VARIANTS [key=value]...",
            help="a matrix of your own with a section study, or variants like gqa,mla; and keys that all runs get",
        ),
    ],
    target: Annotated[str | None, option("SIZE@Nx", "what to decide: a size, at N tokens per parameter")] = None,
    budget: Annotated[str | None, option("HOURS", "like '400 device-hours': the ladder that it pays for")] = None,
    baseline: Annotated[str | None, option("VARIANT", "whose tokens all get; the first variant")] = None,
    match: Annotated[Match | None, typer.Option("--match", help="what the models of a cell have in common")] = None,
    seeds: Annotated[int | None, count("runs of each variant in each cell")] = None,
    dry_run: Annotated[
        bool, switch("--dry-run", "print what the ladder takes and which differences it can tell; train nothing")
    ] = False,
    verdict: Annotated[bool, switch("--verdict", "answer from the records that are there; train nothing")] = False,
    price_per_hour: PricePerHour = None,
    served_tokens: Annotated[
        float | None, option("N", "like 1e12: what training and serving so many tokens take, by --generate", 0.0)
    ] = None,
    generate: Annotated[
        bool, switch("--generate", "measure generation with the largest trained model of each variant")
    ] = False,
    jobs: Annotated[
        str, option("N|auto", "runs at once; auto: as many as have devices of their own, on a CPU one for each core")
    ] = "auto",
    time_limit_s: TimeLimit = None,
    retry_failed: Annotated[bool, switch("--retry-failed", "run again what failed in an earlier call")] = False,
    device: Annotated[str | None, option("NAME", "with --dry-run: plan for this row of hardware.yaml")] = None,
    nodes: Annotated[int | None, count("with --device: machines that each run takes; 1")] = None,
    devices_per_node: Annotated[int | None, count("with --device: of each machine; 8")] = None,
    despite: Annotated[str, option("LIST", "reach: a target further away than a study reaches")] = "",
    smoke: Smoke = False,
    data: Data = None,
    tokenizer: Tokenizer = None,
) -> None:
    """Answer which architecture to pretrain, from a ladder of small runs; called again, it does what is missing."""
    if smoke:
        raise typer.BadParameter(
            "--smoke: these lengths are speed only; use small sizes of your own (docs/study.md#a-ladder-on-a-laptop)"
        )
    if device is None and (nodes or devices_per_node):
        raise typer.BadParameter("--nodes and --devices-per-node go with --device NAME: what to plan for")
    if device is not None and not dry_run:
        raise typer.BadParameter("--device goes with --dry-run: a study runs on the devices of this machine")
    if dry_run and verdict:
        raise typer.BadParameter("--dry-run plans, and --verdict answers: give one of them")
    if strange := set(names(despite)) - {"reach"}:
        raise typer.BadParameter(f"--despite: {min(strange)}: a study knows reach alone")
    from efficientbench.studies.study import Question, as_found, forecast, tell, trained

    question = Question(
        subject=_subject(arguments),
        overrides=tuple(overrides_of([word for word in arguments if "=" in word], data, tokenizer)),
        target=target,
        baseline=baseline,
        match=match.value if match else None,
        seeds=seeds,
        budget=budget,
        generate=generate,
        despite=names(despite),
        price_per_hour=price_per_hour,
        served_tokens=served_tokens,
    )
    if dry_run:
        cluster = None
        if device is not None:
            from efficientbench.sweep.machine import planned_machine

            cluster = planned_machine(device, nodes or 1, devices_per_node or 8)
        forecast(question, jobs, cluster)
        return
    found, code = (as_found(question, jobs), 0) if verdict else trained(question, jobs, time_limit_s, retry_failed)
    if code in (0, 1):
        tell(found)
    raise typer.Exit(code)


def _subject(given: Sequence[str]) -> str:
    """Return the file or the variants that the arguments name; refuse words that are neither nor key=value."""
    words = [word for word in given if "=" not in word]
    if len(words) != 1:
        named = f"{words[1]!r}: one is named already" if words else "name one first"
        raise typer.BadParameter(f"{named}: a file or variants like gqa,mla; a key is written key=value")
    return words[0]
