"""The command `efficientbench speedrun`: from text to a chat model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from efficientbench.cli.options import MODES, AllowCode, count, mode_of, names, option, switch
from efficientbench.data_tools.chat.find_task import EVALUATED


def speedrun(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[dsw|dlc] [key=value]... [STAGE:key=value]...",
            help="dsw: this machine (the default); dlc: several nodes that share the folder; keys of all runs, or of "
            "those of one stage, like sft:training.steps=200",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="PATH", envvar="FINEWEB_DATA", help="text that the base learns; FineWeb-Edu without it"),
    ] = None,
    num_files: Annotated[int, count("files of FineWeb-Edu")] = 3,
    mid: Annotated[Path | None, option("FILE", "mixture that mid-training learns; nanochat's, of the hub")] = None,
    sft: Annotated[Path | None, option("FILE", "mixture that SFT learns; nanochat's, of the hub")] = None,
    task_data: Annotated[
        Path | None,
        option(
            "FOLDER",
            f"items of core, {', '.join(EVALUATED)}: each task's in its own folder; the hub without it, which does not "
            "have core",
        ),
    ] = None,
    limit: Annotated[int | None, count("items of each evaluation; all, or 20 with --short")] = None,
    allow_code: AllowCode = False,
    variant: Annotated[str, option("LIST", "variants of matrix.yaml, one after the other, like gqa,mla")] = "",
    depth: Annotated[int | None, count("layers of width 64 · N; 12, or 4 with --short")] = None,
    vocab_size: Annotated[int | None, count("tokens; 65,536, or 4,096 with --short")] = None,
    rl: Annotated[bool, switch("--rl", "reinforcement learning on GSM8K as a last stage")] = False,
    device: Annotated[str, option("TYPE", "auto: the first accelerator found, else the CPU")] = "auto",
    devices: Annotated[int | None, count("accelerators to train on; all of them")] = None,
    short: Annotated[bool, switch("--short", "few and short steps, as a CPU always takes")] = False,
    smoke: Annotated[
        bool, switch("--smoke", "scaled-down models, all stages, the package's own text and rows: no network is needed")
    ] = False,
    work: Annotated[Path, option("FOLDER", "where everything goes")] = Path("output/speedrun"),
    generate: Annotated[bool, switch("--generate", "measure generation with the last model")] = False,
    price_per_hour: Annotated[float | None, option("X", "of one device, for the report card", 0.0)] = None,
    dry_run: Annotated[bool, switch("--dry-run", "print the commands and run none")] = False,
) -> None:
    """Train, evaluate and report a chat model in all its stages; called again, it does what is missing."""
    from efficientbench.speedrun.perform import device_type
    from efficientbench.speedrun.perform import speedrun as run_speedrun
    from efficientbench.speedrun.request import MID, SAMPLE, SFT, STAGES, Request

    given = arguments or []
    _check_words(given)
    type_ = device_type(device)
    request = Request(
        work=work.absolute(),
        device=type_,
        text=data.absolute() if data else None,
        files=num_files,
        mixtures={stage: path.absolute() for stage, path in ((MID, mid), (SFT, sft)) if path is not None},
        task_data=task_data.absolute() if task_data else SAMPLE if smoke else None,
        allow_code=allow_code,
        limit=limit,
        depth=depth,
        vocabulary=vocab_size,
        variants=names(variant),
        stages=STAGES if rl or smoke else STAGES[:-1],
        short=(short or type_ == "cpu") and not smoke,
        smoke=smoke,
        devices=devices,
        generate=generate,
        price_per_hour=price_per_hour,
        mode=mode_of(given),
        overrides=tuple(word for word in given if "=" in word),
    )
    raise typer.Exit(run_speedrun(request, dry_run))


def _check_words(given: Sequence[str]) -> None:
    """Refuse words that are neither a mode nor key=value."""
    for word in given:
        if word not in MODES and "=" not in word:
            raise typer.BadParameter(f"{word!r}: a key is written key=value; the modes are {' and '.join(MODES)}")
