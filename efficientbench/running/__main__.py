"""The program of every rank: `python -m efficientbench.running WORK JOB`; `run_ranks` starts it."""

import sys
from pathlib import Path

from efficientbench.running.rank_process import end, run_rank

if __name__ == "__main__":
    end(run_rank(sys.argv[1], Path(sys.argv[2])))
