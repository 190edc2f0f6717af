"""Run `python -m data_tools`; Ctrl-C while the command line loads ends it without a traceback."""

import sys

if __name__ == "__main__":
    try:
        from efficientbench.data_tools.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)
