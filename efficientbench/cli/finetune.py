"""The command `efficientbench finetune`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from efficientbench.cli.options import TuningArguments, count, mode_of, option, overrides_of, repeats, switch

MERGE, EFFECT, LOSSES = "merge", "effect", "losses"


def finetune(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="<method>_<size>, like lora_32B; or merge, effect or losses: see below"),
    ],
    arguments: TuningArguments = None,
    smoke: Annotated[bool, switch("--smoke", "a tiny Qwen2 in the named one's place, two ranks")] = False,
    data: Annotated[
        str | None,
        option(
            "PATH", "examples: JSON, JSONL, parquet, or the hub's owner/name; without it: Python's manual, to try a run"
        ),
    ] = None,
    repeat: Annotated[int | None, repeats("N runs with consecutive seeds; complete ones stay")] = None,
    plan: Annotated[bool, switch("--plan", "print memory, traffic and layouts that fit; touches no device")] = False,
    world: Annotated[int, count("of --plan: ranks of all nodes")] = 16,
    devices_per_node: Annotated[int, count("of --plan: accelerators in a node")] = 8,
    device: Annotated[str | None, option("NAME", "of --plan: a row of hardware.yaml, like 'H100 SXM'")] = None,
    memory_gb: Annotated[float | None, option("GB", "of --plan: a device's memory; the row's, or 64")] = None,
    fresh: Annotated[bool, switch("--fresh", "start at step 1, whatever an earlier attempt has left")] = False,
    base: Annotated[str | None, option("MODEL", "of merge: the base model, in the recorded one's place")] = None,
) -> None:
    """Fine-tune a transformers model by LoRA or in full on DeepSpeed's ZeRO, measure it, and save what it learned.

    `efficientbench finetune merge RUN DIR` writes a run's adapter and its base as one model.
    `efficientbench finetune effect FOLDER` compares the runs of a folder that differ in curriculum.order and seed.
    `efficientbench finetune losses NAME FILE` writes the examples with the base model's losses as difficulty.
    """
    given = list(arguments or [])
    if not plan and (device is not None or memory_gb is not None):
        raise typer.BadParameter("--device and --memory-gb need --plan: a training takes the devices that are here")
    if base is not None and name != MERGE:
        raise typer.BadParameter("--base needs merge: a training takes model=MODEL")
    if name == EFFECT:
        _effect(given)
    elif plan:
        from rich.console import Console

        from efficientbench.finetuning.load import resolve_tuning
        from efficientbench.finetuning.planning.plan_table import print_tuning_plan
        from efficientbench.finetuning.planning.request import plan_request

        config = resolve_tuning(name, smoke, overrides_of(given, data))
        print_tuning_plan(plan_request(config, world, devices_per_node, device, memory_gb), Console(width=160))
    elif name == MERGE:
        _merge(given, base)
    elif name == LOSSES:
        _losses(given, smoke, data)
    else:
        raise typer.Exit(_train(name, smoke, overrides_of(given, data), mode_of(given), repeat, fresh))


def _effect(given: list[str]) -> None:
    if len(given) != 1:
        raise typer.BadParameter("effect takes a folder of runs: efficientbench finetune effect FOLDER")
    from rich.console import Console

    from efficientbench.finetuning.curriculum.effect_table import print_effects

    print_effects(Path(given[0]), Console(width=160))


def _merge(given: list[str], base: str | None) -> None:
    _check_stack()
    if len(given) != 2:
        raise typer.BadParameter("merge takes two folders: efficientbench finetune merge RUN DIR")
    from efficientbench.finetuning.saved import merge

    print(f"{merge(Path(given[0]), Path(given[1]), base):,} numbers: {given[1]}")


def _losses(given: list[str], smoke: bool, data: str | None) -> None:
    words = [each for each in given if "=" not in each]
    if len(words) != 2:
        raise typer.BadParameter("losses takes a fine-tuning and a new file: finetune losses lora_7B scored.jsonl")
    _check_stack()
    from efficientbench.finetuning.load import resolve_tuning

    name, file = words
    config = resolve_tuning(name, smoke, overrides_of([each for each in given if "=" in each], data))
    from efficientbench.finetuning.curriculum.base_losses import write_losses

    print(f"{write_losses(config, Path(file)):,} examples: {file}")


def _train(name: str, smoke: bool, overrides: list[str], mode: str, repeat: int | None, fresh: bool) -> int:
    """Train, once or with `repeat` seeds, and return the exit code."""
    _check_stack()
    from efficientbench.finetuning.load import resolve_tuning

    config = resolve_tuning(name, smoke, overrides)
    from efficientbench.finetuning.run import FineTuning
    from efficientbench.running.kind import find_site
    from efficientbench.running.parent import perform, perform_repeats

    if repeat is not None:
        return perform_repeats(FineTuning(), config, mode, repeat, fresh=fresh)
    return perform(FineTuning(), config, find_site(config, mode), fresh)


def _check_stack() -> None:
    """Raise ConfigError where this environment has not what fine-tuning needs."""
    from efficientbench.basics.errors import ConfigError
    from efficientbench.doctor.finetuning import finetuning_check

    found = finetuning_check(tuple(sys.version_info[:3]))
    if not found.passed:
        mended = f"; `{found.remedy}` sets it up" if found.remedy else ""
        raise ConfigError(f"fine-tuning {found.result}{mended}")
