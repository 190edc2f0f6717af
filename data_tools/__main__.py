"""`python -m data_tools`."""

from efficientbench.data_tools.cli import main

if __name__ == "__main__":
    main()
