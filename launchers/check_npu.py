#!/usr/bin/env python3
"""Check this machine's NPUs: `python3 launchers/check_npu.py` is `efficientbench doctor --device npu`.

Any Python 3 can run it: where this one lacks the package, the Python of .venv makes the check.
"""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Like -m, but without the working directory, whose modules Python 3.10 would import.
WITHOUT_FOLDER = "import sys; sys.path = [each for each in sys.path if each]; "
NEEDED = WITHOUT_FOLDER + "import efficientbench.doctor.doctor, typer"
DOCTOR = WITHOUT_FOLDER + "import runpy; runpy.run_module('efficientbench.cli', {}, '__main__', True)"
NOT_SET_UP = {
    "": "error: the Python environment is not set up yet: bash launchers/setup_ascend.sh",
    "zh": "错误：尚未设置 Python 环境：bash launchers/setup_ascend.sh",
}
"""Beginning of the locale → the message where no Python has the package."""


def main() -> int:
    """Run the check with the first Python that has the package; return its exit status."""
    # Without empty entries, which mean the working directory: CANN's set_env.sh leaves one.
    paths = os.pathsep.join([ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    environment = dict(os.environ, PYTHONPATH=paths, PYTHONSAFEPATH="1")
    for python in (sys.executable, os.path.join(ROOT, ".venv", "bin", "python")):
        if not os.path.exists(python):
            continue
        tried = subprocess.run([python, "-c", NEEDED], env=environment, capture_output=True, check=False)
        if tried.returncode == 0:
            command = [python, "-c", DOCTOR, "doctor", "--device", "npu", *sys.argv[1:]]
            return subprocess.run(command, env=environment, check=False).returncode
    locale = next((os.environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if os.environ.get(name)), "")
    print(NOT_SET_UP["zh" if locale.lower().startswith("zh") else ""], file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
