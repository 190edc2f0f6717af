"""`python -m data_tools`. The command line takes a moment to load, in which Ctrl-C may come."""

import sys

if __name__ == "__main__":
    try:
        from efficientbench.data_tools.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)
