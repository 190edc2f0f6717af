"""`python -m efficientbench`."""

from efficientbench.cli import main

main()
