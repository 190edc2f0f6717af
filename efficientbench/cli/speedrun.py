"""The command `efficientbench speedrun`: from text to a chat model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from efficientbench.cli.options import MODES, names
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
        typer.Option(
            "--data", metavar="PATH", envvar="FINEWEB_DATA", help="text that the base learns; FineWeb-Edu without it"
        ),
    ] = None,
    num_files: Annotated[int, typer.Option("--num-files", metavar="N", min=1, help="files of FineWeb-Edu")] = 3,
    mid: Annotated[
        Path | None,
        typer.Option("--mid", metavar="FILE", help="mixture that mid-training learns; nanochat's, of the hub"),
    ] = None,
    sft: Annotated[
        Path | None, typer.Option("--sft", metavar="FILE", help="mixture that SFT learns; nanochat's, of the hub")
    ] = None,
    task_data: Annotated[
        Path | None,
        typer.Option(
            "--task-data",
            metavar="FOLDER",
            help=f"items of core, {', '.join(EVALUATED)}: each task's in its own folder; the hub without it, which "
            "does not have core",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=1, help="items of each evaluation; all, or 20 with --short"),
    ] = None,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="run programs that the model writes, as humaneval needs it")
    ] = False,
    variant: Annotated[
        str,
        typer.Option("--variant", metavar="LIST", help="variants of matrix.yaml, one after the other, like gqa,mla"),
    ] = "",
    depth: Annotated[
        int | None, typer.Option("--depth", metavar="N", min=1, help="layers of width 64 · N; 12, or 4 with --short")
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option("--vocab-size", metavar="N", min=1, help="tokens; 65,536, or 4,096 with --short")
    ] = None,
    rl: Annotated[bool, typer.Option("--rl", help="reinforcement learning on GSM8K as a last stage")] = False,
    device: Annotated[
        str, typer.Option("--device", metavar="TYPE", help="auto: the first accelerator found, else the CPU")
    ] = "auto",
    devices: Annotated[
        int | None, typer.Option("--devices", metavar="N", min=1, help="accelerators to train on; all of them")
    ] = None,
    short: Annotated[bool, typer.Option("--short", help="few and short steps, as a CPU always takes")] = False,
    work: Annotated[Path, typer.Option("--work", metavar="FOLDER", help="where everything goes")] = Path(
        "output/speedrun"
    ),
    generate: Annotated[bool, typer.Option("--generate", help="measure generation with the last model")] = False,
    price_per_hour: Annotated[
        float | None, typer.Option("--price-per-hour", metavar="X", min=0.0, help="of one device, for the report card")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the commands and run none")] = False,
) -> None:
    """Train, evaluate and report a chat model in all its stages; called again, it does what is missing."""
    from efficientbench.speedrun.perform import device_type
    from efficientbench.speedrun.perform import speedrun as run_speedrun
    from efficientbench.speedrun.request import MID, SFT, STAGES, Request

    given = arguments or []
    modes = _modes(given)
    type_ = device_type(device)
    request = Request(
        work=work.absolute(),
        device=type_,
        text=data.absolute() if data else None,
        files=num_files,
        mixtures={stage: path for stage, path in ((MID, mid), (SFT, sft)) if path is not None},
        task_data=task_data.absolute() if task_data else None,
        allow_code=allow_code,
        limit=limit,
        depth=depth,
        vocabulary=vocab_size,
        variants=names(variant),
        stages=STAGES if rl else STAGES[:-1],
        short=short or type_ == "cpu",
        devices=devices,
        generate=generate,
        price_per_hour=price_per_hour,
        mode=modes[-1] if modes else MODES[0],
        overrides=tuple(word for word in given if "=" in word),
    )
    raise typer.Exit(run_speedrun(request, dry_run))


def _modes(given: Sequence[str]) -> list[str]:
    """Return the modes among the arguments; refuse words that are neither a mode nor key=value."""
    for word in given:
        if word not in MODES and "=" not in word:
            raise typer.BadParameter(f"{word!r}: a key is written key=value; the modes are {' and '.join(MODES)}")
    return [word for word in given if word in MODES]
