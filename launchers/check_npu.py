#!/usr/bin/env python3
"""Checks this machine's NPUs: `python3 launchers/check_npu.py` is `efficientbench doctor --device npu`.

Works from any Python 3: where this one lacks the package, that of .venv is used.
"""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NEEDED = "import efficientbench.doctor.doctor, typer"


def main() -> int:
    """Run the check by the first Python that has the package; return its exit status."""
    paths = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
    # Otherwise a package called metrics in the working directory would hide ours (Python 3.11 and newer).
    environment = dict(os.environ, PYTHONPATH=paths, PYTHONSAFEPATH="1")
    for python in (sys.executable, os.path.join(ROOT, ".venv", "bin", "python")):
        if not os.path.exists(python):
            continue
        tried = subprocess.run([python, "-c", NEEDED], env=environment, capture_output=True, check=False)
        if tried.returncode == 0:
            command = [python, "-m", "efficientbench.cli", "doctor", "--device", "npu", *sys.argv[1:]]
            return subprocess.run(command, env=environment, check=False).returncode
    print("error: the Python environment is not set up yet: bash launchers/setup_ascend.sh", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
