"""The command line. Here is only its beginning: `app` takes a moment to load, in which Ctrl-C may come."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it with 130 and without a traceback, also while it is loaded."""
    try:
        from efficientbench.basics.readers import outlive_readers
        from efficientbench.cli.app import run_command

        outlive_readers()
        run_command()
    except KeyboardInterrupt:
        sys.exit(130)
