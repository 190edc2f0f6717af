"""The command line. Bodies are thin, and import what they need when called, so that help and mistakes answer fast."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from data_tools.errors import DataError

app = typer.Typer(
    name="python -m data_tools",
    help="From a corpus on the hub, or in files, to tokens on disk in Megatron's .bin/.idx format.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Prefix = Annotated[
    Path, typer.Argument(metavar="PREFIX", help="path of a .bin/.idx pair without its suffix, or one of the two files")
]


@app.callback()
def data_tools() -> None:
    """From a corpus on the hub, or in files, to tokens on disk in Megatron's .bin/.idx format."""


@app.command()
def inspect(
    prefix: Prefix,
    documents: Annotated[int, typer.Option("--documents", min=0, help="how many documents to show as text")] = 3,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="folder or name; by default the one that made the pair")
    ] = None,
) -> None:
    """Show what a .bin/.idx pair holds: figures, lengths of its documents, the first of them as text."""
    from data_tools.inspection import describe_pair, tokenizer_of

    prefix = _without_suffix(prefix)
    for line in describe_pair(prefix, tokenizer_of(prefix, tokenizer), documents):
        print(line)


@app.command()
def verify(prefix: Prefix) -> None:
    """Check a .bin/.idx pair; what is damaged is named with the byte where it goes wrong."""
    from data_tools.indexed import check_indexed

    header = check_indexed(_without_suffix(prefix))
    print(f"{header.documents:,} documents of {header.tokens:,} tokens ({header.dtype})")


def _without_suffix(prefix: Path) -> Path:
    return prefix.with_suffix("") if prefix.suffix in (".bin", ".idx") else prefix


def main() -> None:
    """Entry point: a user's mistake is told on stderr, with exit code 2 and no traceback."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s", stream=sys.stderr)
    try:
        app()
    except (DataError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
