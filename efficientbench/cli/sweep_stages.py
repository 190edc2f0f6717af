"""The command `efficientbench sweep --stages`: several architectures through the stages of a chat model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import typer

from efficientbench.cli.options import names


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
