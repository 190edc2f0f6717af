"""The commands `efficientbench check-variant` and `new-variant`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from efficientbench.cli.options import option


def variant_names() -> list[str]:
    """Return the names of all attention variants and encodings: the project's, and those of installed packages."""
    from efficientbench.architecture.registry import ATTENTION, ENTRY_POINTS, POSITIONS
    from efficientbench.basics.plugins import installed

    return [*ATTENTION, *POSITIONS, *installed(ENTRY_POINTS), "package.module:NAME"]


def check_variant(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="of attention or position, ours or package.module:NAME")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[key=value]...", help="keys of the tiny model, like its own shapes")
    ] = None,
) -> None:
    """Check one variant on a tiny model: causality, lengths, counts, layouts, checkpoints, determinism."""
    from efficientbench.doctor.variant.check import check_variant as check

    raise typer.Exit(check(kind, arguments or []))


def new_variant(
    name: Annotated[str, typer.Argument(metavar="NAME", help="of the module, like my_window")],
    *,
    like: Annotated[str, option("KIND", "what it starts from, like gqa")],
) -> None:
    """Write NAME.py, a declaration to start from: an attention variant of your own."""
    from efficientbench.doctor.variant.check import write_variant

    path = write_variant(name, like, Path.cwd())
    # A recurrence has no positions but its order, and dense_1.5B has RoPE.
    position = " model.position.kind=none" if like == "recurrent" else ""
    print(
        f"{path.name} is written; try it:\n"
        f"  export PYTHONPATH=$PWD${{PYTHONPATH:+:$PYTHONPATH}}\n"
        f"  efficientbench check-variant {name}:VARIANT\n"
        f"  efficientbench run dense_1.5B --smoke model.attention.kind={name}:VARIANT{position}"
    )
