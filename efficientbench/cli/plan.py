"""The command `efficientbench plan`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from efficientbench.basics.language import in_users_language
from efficientbench.cli.generate import numbers
from efficientbench.cli.options import (
    RUN,
    Arguments,
    Data,
    MatrixFile,
    PricePerHour,
    Smoke,
    Tokenizer,
    count,
    names,
    option,
    overrides_of,
    resolve_arguments,
    switch,
)

if TYPE_CHECKING:
    from efficientbench.config.schema import RunConfig
    from efficientbench.metrics.records.record import RunRecord
    from efficientbench.planning.plan import Plan


def plan(
    name: Annotated[str | None, RUN] = None,
    arguments: Arguments = None,
    smoke: Smoke = False,
    data: Data = None,
    tokenizer: Tokenizer = None,
    matrix: MatrixFile = None,
    every: Annotated[bool, switch("--all", "one table of all runs of the matrix; no NAME then")] = False,
    world: Annotated[
        int | None,
        typer.Option("--world", "--gpus", metavar="N", min=1, help="on N accelerators: stages, communication, time"),
    ] = None,
    devices_per_node: Annotated[int | None, count("with --world: accelerators in a node; 8")] = None,
    device: Annotated[
        str | None, option("NAME", "a row of hardware.yaml, like 'H100 SXM'; without --world, a usual machine of it")
    ] = None,
    best: Annotated[
        bool, switch("--search", "with --world and --device: rank layouts, micro-batches and recomputation")
    ] = False,
    generate: Annotated[
        bool, switch("--generate", "prefill and decoding by the roofline, and the largest batch that fits")
    ] = False,
    prompt_tokens: Annotated[str | None, option("LIST", "with --generate: tokens of a prompt (128,2048)")] = None,
    batch: Annotated[str | None, option("LIST", "with --generate: rows that are computed at once (1,8)")] = None,
    weights: Annotated[
        str | None, option("LIST", "with --generate and --device: widths of the weights, like none,int8,int4")
    ] = None,
    repeats: Annotated[int | None, count("also what N repeats of two models tell, by records in `output`")] = None,
    price_per_hour: PricePerHour = None,
) -> None:
    """Print what a run will be: parameters, FLOPs, steps, layout, memory. Touches no device.

    Several names, and any config.json of transformers or its folder, become rows of one table.
    """
    if _is_table([*([name] if name else []), *(arguments or [])]):
        for option, value in {
            "--all": every,
            "--world": world,
            "--devices-per-node": devices_per_node,
            "--search": best,
            "--generate": generate,
            "--prompt-tokens": prompt_tokens,
            "--batch": batch,
            "--weights": weights,
            "--repeats": repeats,
            "--matrix": matrix,
            "--price-per-hour": price_per_hour,
        }.items():
            if value:
                raise typer.BadParameter(f"{option} goes with one run: leave it out of a table of models")
        from efficientbench.planning.foreign.table import print_models

        given = overrides_of([*([name] if name else []), *(arguments or [])], data, tokenizer)
        print_models(
            [word for word in given if "=" not in word], [word for word in given if "=" in word], smoke, device
        )
        return
    if world is None and devices_per_node is not None and (device is None or generate):
        raise typer.BadParameter("--devices-per-node goes with --world N: how many devices there are")
    if world is None and device is not None and not generate:
        if every:
            raise typer.BadParameter("--device goes with a NAME, or with --generate: leave it or --all out")
        world = devices_per_node or _usual_count(device)
    if world is not None and generate:
        raise typer.BadParameter("--generate is about one device: leave --world out")
    if not generate and (prompt_tokens is not None or batch is not None):
        raise typer.BadParameter("--prompt-tokens and --batch go with --generate")
    if weights is not None and not (generate and device):
        raise typer.BadParameter("--weights goes with --generate and --device NAME, whose kernels store the weights")
    if every and matrix is not None:
        raise typer.BadParameter("--all is about the shipped matrix: leave --matrix out, or name a run of it")
    if best and (world is None or device is None or every):
        raise typer.BadParameter("--search goes with NAME, --world N and --device NAME: what is searched on")
    if not every and name is None:
        raise typer.BadParameter("plan needs the name of a run, like gqa_1.5B, or --all")
    from efficientbench.config.quantization import FULL, split_widths

    widths, arguments = split_widths(names(weights or FULL), arguments or [])
    overrides = overrides_of([*([name] if name else []), *arguments], data, tokenizer) if every else []
    if price_per_hour is not None and (every or generate):
        raise typer.BadParameter("--price-per-hour goes with NAME, and neither with --all nor --generate")
    if repeats is not None and (every or best or generate):
        raise typer.BadParameter("--repeats goes with NAME, and neither with --all, --search nor --generate")
    if generate:
        from rich.console import Console

        from efficientbench.planning.generation_plan import print_generation
        from efficientbench.planning.table import print_lines

        if every:
            from efficientbench.planning.plan_table import of_each_run
            from efficientbench.planning.vocabulary import resolve_run

            configs, refused = of_each_run(lambda name: resolve_run(name, smoke, overrides)[0])
        else:
            configs, refused = [resolve_arguments(name or "", arguments or [], smoke, data, tokenizer, matrix)[0]], []
        prompts = numbers("--prompt-tokens", prompt_tokens or "128,2048")
        console = Console(width=200, emoji=False)
        print_generation(configs, prompts, numbers("--batch", batch or "1,8"), device, console, widths)
        print_lines(console, refused)
        return
    if every:
        from efficientbench.planning.plan_table import print_matrix

        print_matrix(overrides, smoke)
        return
    from efficientbench.config.load import check_is_no_file

    config, _ = resolve_arguments(name or "", arguments or [], smoke, data, tokenizer, matrix)
    check_is_no_file(Path(config.output))
    if world is not None and best and device is not None:
        options = {"--data": data, "--tokenizer": tokenizer, "--matrix": matrix and str(matrix)}
        given = [name or "", *overrides_of(arguments or [], None, None), *(["--smoke"] if smoke else [])]
        given += [word for option, value in options.items() if value for word in (option, value)]
        _print_search(config, given, world, devices_per_node or 8, device, price_per_hour)
        return
    _print_plan(config, world, devices_per_node or 8, device, price_per_hour)
    if repeats is not None:
        from efficientbench.metrics.analysis.needed import what_repeats_tell

        for line in what_repeats_tell(_records(config), repeats, 2, config.output):
            typer.echo(line)


def _is_table(words: Sequence[str]) -> bool:
    """Return whether words of the command line name several models, or one by its config.json."""
    named = [word for word in overrides_of(words, None) if "=" not in word]
    if len(named) > 1 or not any(word.endswith(".json") or os.path.isdir(word) for word in named):
        # The readers of others' configurations are not loaded for every plan.
        return len(named) > 1
    from efficientbench.planning.foreign.read import is_configuration

    return any(map(is_configuration, named))


def _usual_count(device: str) -> int:
    """Return how many devices a usual machine has, and say that they are assumed."""
    from efficientbench.metrics.sensors.hardware import known_device

    known = known_device(device)
    typer.echo(f"assumed: {known.usual_count} x {known.name}; --world N sets how many there are")
    return known.usual_count


def _records(config: RunConfig) -> list[RunRecord]:
    """Return the records in the run's output folder; none before it exists."""
    from efficientbench.metrics.records.plausible import load_records

    output = Path(config.output)
    return load_records(output)[0] if output.is_dir() else []


def _print_plan(
    config: RunConfig, world: int | None, per_node: int, device: str | None, price_per_hour: float | None
) -> None:
    """Print the plan on a cluster of `world` accelerators, or where there is none on any machine."""
    from rich.console import Console

    from efficientbench.planning.bill import bill, first_line

    if world is not None:
        from efficientbench.planning.cluster_plan import make_cluster_plan
        from efficientbench.planning.cluster_table import print_cluster_plan
        from efficientbench.planning.text import length_line

        cluster = make_cluster_plan(config, world, per_node, device)
        step_s = cluster.projection.step_time_s if cluster.projection else None
        energy_j, source = _measured(cluster.plan, device)
        found = bill(cluster.plan, step_s, cluster.not_projected or source, energy_j, device)
        typer.echo(in_users_language(first_line([found], 1, device, price_per_hour)))
        typer.echo(in_users_language(length_line(cluster.plan)))
        print_cluster_plan(cluster, Console(width=160))
        return
    from efficientbench.planning.plan import plan_anywhere
    from efficientbench.planning.plan_table import print_plan

    plan = plan_anywhere(config)
    unnamed = bill(plan, None, "--world N --device NAME, like --world 8 --device 'H100 SXM', projects them")
    typer.echo(in_users_language(first_line([unnamed], 1, None, price_per_hour)))
    print_plan(plan, Console(emoji=False))


def _measured(plan: Plan, device: str | None) -> tuple[float | None, str]:
    """Return a run's energy by the records in its output folder, with its source; or None and why."""
    from efficientbench.sweep.estimate import measured_energy_j

    return (None, "no device is named") if device is None else measured_energy_j(plan, device, _records(plan.config))


def _print_search(
    config: RunConfig, given: list[str], world: int, per_node: int, device: str, price_per_hour: float | None
) -> None:
    """Print the fastest layouts, and the command of the first; `given` are the words of the command line."""
    from rich.console import Console

    from efficientbench.config.spellings import TRAINING, spelled
    from efficientbench.planning.bill import bill, first_line
    from efficientbench.planning.plan import make_plan
    from efficientbench.planning.search import print_search, search, words_of
    from efficientbench.planning.text import length_line

    keys = {spelled(word, TRAINING)[0].partition("=")[0] for word in given}
    found = search(config, world, per_node, device, keys)
    best = found.ranked[0]
    plan = make_plan(best.config, best.layout, 0)
    energy_j, source = _measured(plan, device)
    spent = bill(plan, best.projection.step_time_s, source, energy_j, device)
    typer.echo(in_users_language(first_line([spent], 1, device, price_per_hour)))
    typer.echo(in_users_language(length_line(plan)))
    words = [*given, *words_of(best.config, config)]
    if found.nodes > 1:
        command = ["launch", *words, "--to", "slurm", "--nodes", str(found.nodes), "--devices-per-node", str(per_node)]
    else:
        command = ["run", *words]
    print_search(found, shlex.join(["efficientbench", *command]), Console(width=160, emoji=False))
