"""The scripts `experiments/<suite>/run_<name>.sh`, one for each run of the matrix."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from efficientbench.basics.errors import ConfigError
from efficientbench.config.matrix import CHAT, EXPERIMENTS, HYBRIDS, MATRIX, load_matrix

TEMPLATE = """\
#!/usr/bin/env bash
# Runs, measures and reports {name}. Written by `efficientbench scripts` from experiments/{file}.
#
#   bash experiments/{suite}/run_{name}.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${{BASH_SOURCE[0]}}")/../../launchers/run_named.sh" {words} "$@"
"""


def script(name: str, suite: str, file: Path, words: str | None = None) -> tuple[str, str]:
    """Return the path below experiments/, in the folder `suite`, and the text of the script of a run that `file` names.

    `words`: what launchers/run_named.sh is called with; None: `name`.
    """
    text = TEMPLATE.format(name=name, suite=suite, file=file.name, words=words or name)
    return f"{suite}/run_{name}.sh", text


def write_scripts(folder: Path = EXPERIMENTS, further: Mapping[str, str] = {}) -> None:  # noqa: B006, only read
    """Write every script below `folder`, and remove those of runs that the matrix no longer has.

    `further`: path below `folder` → text of scripts whose runs are not in the matrix.
    """
    scripts = _scripts(folder, further)
    for path, text in scripts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    for path in _present(folder, further) - scripts.keys():
        path.unlink()


def check_scripts(folder: Path = EXPERIMENTS, further: Mapping[str, str] = {}) -> None:  # noqa: B006, only read
    """Check that `write_scripts` would change no script below `folder`.

    Raises ConfigError: a script would change; the message names every such script.
    """
    scripts = _scripts(folder, further)
    problems = [f"{path} is of no run in the matrix" for path in sorted(_present(folder, further) - scripts.keys())]
    for path, text in scripts.items():
        if not path.is_file():
            problems.append(f"{path} is missing")
        elif path.read_text(encoding="utf-8") != text:
            problems.append(f"{path} is not what the matrix gives")
        elif not os.access(path, os.X_OK):
            problems.append(f"{path} is not executable")
    if problems:
        raise ConfigError(f"{'; '.join(problems)}: `efficientbench scripts` writes them anew")


def _scripts(folder: Path, further: Mapping[str, str]) -> dict[Path, str]:
    files = {CHAT.stem: CHAT, **dict.fromkeys(load_matrix(HYBRIDS).suites, HYBRIDS)}
    own = dict(script(run.name, run.suite, files.get(run.suite, MATRIX)) for run in load_matrix().all_runs)
    return {folder / name: text for name, text in {**further, **own}.items()}


def _present(folder: Path, further: Mapping[str, str]) -> set[Path]:
    suites = {run.suite for run in load_matrix().all_runs} | {str(Path(name).parent) for name in further}
    return {path for suite in suites for path in (folder / suite).glob("run_*.sh")}
