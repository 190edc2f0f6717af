"""The command `efficientbench plan`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from efficientbench.cli.generate import numbers
from efficientbench.cli.options import (
    RUN,
    Arguments,
    Data,
    MatrixFile,
    Smoke,
    Tokenizer,
    count,
    option,
    overrides_of,
    resolve_arguments,
    switch,
)

if TYPE_CHECKING:
    from efficientbench.config.schema import RunConfig


def plan(
    name: Annotated[str | None, RUN] = None,
    arguments: Arguments = None,
    smoke: Smoke = False,
    data: Data = None,
    tokenizer: Tokenizer = None,
    matrix: MatrixFile = None,
    every: Annotated[bool, switch("--all", "one table of all runs of the matrix; no NAME then")] = False,
    world: Annotated[int | None, count("on N accelerators: stages, communication, step time")] = None,
    devices_per_node: Annotated[int | None, count("with --world: accelerators in a node; 8")] = None,
    device: Annotated[
        str | None, option("NAME", "with --world or --generate: a row of hardware.yaml, like 'H100 SXM'")
    ] = None,
    best: Annotated[
        bool, switch("--search", "with --world and --device: rank layouts, micro-batches and recomputation")
    ] = False,
    generate: Annotated[
        bool, switch("--generate", "prefill and decoding by the roofline, and the largest batch that fits")
    ] = False,
    prompt_tokens: Annotated[str | None, option("LIST", "with --generate: tokens of a prompt (128,2048)")] = None,
    batch: Annotated[str | None, option("LIST", "with --generate: rows that are computed at once (1,8)")] = None,
    repeats: Annotated[int | None, count("also what N repeats of two models tell, by records in `output`")] = None,
) -> None:
    """Print what a run will be: parameters, FLOPs, steps, layout, memory. Touches no device."""
    if world is None and devices_per_node is not None:
        raise typer.BadParameter("--devices-per-node goes with --world N: how many devices there are")
    if world is None and device is not None and not generate:
        raise typer.BadParameter("--device goes with --world N, how many devices there are, or with --generate")
    if world is not None and generate:
        raise typer.BadParameter("--generate is about one device: leave --world out")
    if not generate and (prompt_tokens is not None or batch is not None):
        raise typer.BadParameter("--prompt-tokens and --batch go with --generate")
    if every and matrix is not None:
        raise typer.BadParameter("--all is about the shipped matrix: leave --matrix out, or name a run of it")
    if best and (world is None or device is None or every):
        raise typer.BadParameter("--search goes with NAME, --world N and --device NAME: what is searched on")
    if not every and name is None:
        raise typer.BadParameter("plan needs the name of a run, like gqa_1.5B, or --all")
    overrides = overrides_of([*([name] if name else []), *(arguments or [])], data, tokenizer) if every else []
    if repeats is not None and (every or best or generate):
        raise typer.BadParameter("--repeats goes with NAME, and neither with --all, --search nor --generate")
    if generate:
        from rich.console import Console

        from efficientbench.planning.generation_plan import matrix_configs, print_generation
        from efficientbench.planning.table import print_lines

        if every:
            configs, refused = matrix_configs(overrides, smoke)
        else:
            configs, refused = [resolve_arguments(name or "", arguments or [], smoke, data, tokenizer, matrix)[0]], []
        prompts = numbers("--prompt-tokens", prompt_tokens or "128,2048")
        console = Console(width=200, emoji=False)
        print_generation(configs, prompts, numbers("--batch", batch or "1,8"), device, console)
        print_lines(console, refused)
        return
    if every:
        from efficientbench.planning.plan_table import print_matrix

        print_matrix(overrides, smoke)
        return
    config, _ = resolve_arguments(name or "", arguments or [], smoke, data, tokenizer, matrix)
    if world is not None and best and device is not None:
        options = {"--data": data, "--tokenizer": tokenizer, "--matrix": matrix and str(matrix)}
        given = [name or "", *overrides_of(arguments or [], None, None), *(["--smoke"] if smoke else [])]
        given += [word for option, value in options.items() if value for word in (option, value)]
        _print_search(config, given, world, devices_per_node or 8, device)
        return
    _print_plan(config, world, devices_per_node or 8, device)
    if repeats is not None:
        from efficientbench.metrics.analysis.needed import what_repeats_tell
        from efficientbench.metrics.records.plausible import load_records

        output = Path(config.output)
        records = load_records(output)[0] if output.is_dir() else []
        for line in what_repeats_tell(records, repeats, 2, str(output)):
            typer.echo(line)


def _print_plan(config: RunConfig, world: int | None, per_node: int, device: str | None) -> None:
    """Print the plan on a cluster of `world` accelerators, or where there is none on any machine."""
    from rich.console import Console

    if world is not None:
        from efficientbench.planning.cluster_plan import make_cluster_plan
        from efficientbench.planning.cluster_table import print_cluster_plan

        print_cluster_plan(make_cluster_plan(config, world, per_node, device), Console(width=160))
        return
    from efficientbench.planning.plan import plan_anywhere
    from efficientbench.planning.plan_table import print_plan

    print_plan(plan_anywhere(config), Console(emoji=False))


def _print_search(config: RunConfig, given: list[str], world: int, per_node: int, device: str) -> None:
    """Print the fastest layouts, and the command of the first; `given` are the words of the command line."""
    from rich.console import Console

    from efficientbench.config.spellings import TRAINING, spelled
    from efficientbench.planning.search import print_search, search, words_of

    keys = {spelled(word, TRAINING)[0].partition("=")[0] for word in given}
    found = search(config, world, per_node, device, keys)
    words = [*given, *words_of(found.ranked[0].config, config)]
    if found.nodes > 1:
        command = ["launch", *words, "--to", "slurm", "--nodes", str(found.nodes), "--devices-per-node", str(per_node)]
    else:
        command = ["run", *words]
    print_search(found, shlex.join(["efficientbench", *command]), Console(width=160, emoji=False))
