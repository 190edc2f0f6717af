"""`python -m efficientbench.cli`."""

from efficientbench.cli import main

main()
