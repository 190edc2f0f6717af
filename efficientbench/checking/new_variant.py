"""Write the file from which a new attention variant starts: a copy of one in model/attention/."""

from __future__ import annotations

import keyword
from pathlib import Path

from efficientbench.config.errors import ConfigError
from efficientbench.model import attention

SUFFIX = "_example.py"
EXAMPLES = {path.name.removesuffix(SUFFIX): path for path in Path(attention.__path__[0]).glob(f"*{SUFFIX}")}


def write_variant(name: str, like: str, folder: Path) -> Path:
    """Write NAME.py into a folder and return its path. Raises ConfigError: the name is no module's, or is taken."""
    if like not in EXAMPLES:
        raise ConfigError(f"--like: there is no example like {like[:80]!r}; there are {', '.join(sorted(EXAMPLES))}")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(f"{name[:80]!r} is no name of a Python module: letters, digits and _, like my_window")
    path = folder / f"{name}.py"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(EXAMPLES[like].read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; nothing was written") from None
    return path
