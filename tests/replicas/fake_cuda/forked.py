"""Call another script of this folder in forks of one process that has imported the libraries, which takes long.

    python forked.py LIBRARY NAME

NAME: `step` or `decode`. Each line of the input has the script's words after its library, as JSON. What it prints
comes back, and a line `end`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

if __name__ == "__main__":
    script = importlib.import_module(f"replicas.fake_cuda.{sys.argv[2]}")
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            try:
                sys.argv[2:] = json.loads(line)
                script.main()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
        os.waitpid(child, 0)
        print("end", flush=True)
