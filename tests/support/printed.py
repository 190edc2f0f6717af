"""What a function prints to a console."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rich.console import Console


def on_one_line(print_it: Callable[[Any, Console], None], content: object) -> str:
    """Return what `print_it(content, console)` prints, without the lines of tables, on one line."""
    console = Console(width=160)
    with console.capture() as captured:
        print_it(content, console)
    return re.sub(r"[\s│]+", " ", captured.get())
