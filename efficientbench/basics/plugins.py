"""Finds and imports code from outside this project: `package.module:NAME`, or an entry point of an installed package.

Python's import path alone is searched: installed packages and the folders in PYTHONPATH. Only `load` imports, and so
runs code: call it only for a name from the user's own command or file.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from efficientbench.basics.errors import ConfigError, did_you_mean, nearest

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def installed(group: str) -> dict[str, str]:
    """Return the entry points of a group by name, as `package.module:NAME`; read metadata, and import nothing."""
    # Imported late: most commands have no use for it.
    from importlib.metadata import entry_points

    # Without extras, as in "package.module:NAME [extra]".
    return {each.name: each.value.partition("[")[0].strip() for each in entry_points(group=group)}


@cache
def place_of(name: str, group: str) -> str | None:
    """Return `package.module:NAME` of a name that is one itself, or an entry point's; None for other names."""
    return name if _DOTTED.fullmatch(name) else installed(group).get(name)


def load(key: str, place: str, fits: Callable[[Any], bool], wanted: str) -> Any:
    """Import the object `package.module:NAME`.

    Args:
        key: what needs the object, a configuration's key for example, with which each message begins.
        place: the object's `package.module:NAME`.
        fits: whether an object is of the kind that is wanted.
        wanted: the kind's name in messages, "AttentionVariant" or "a function" for example.

    Raises:
        ConfigError: the module cannot be imported, has no such name, or the object is of another kind.
    """
    name, _, attribute = place.partition(":")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{key}: {name} needs {error.name}, which is not installed") from None
        raise ConfigError(
            f"{key}: there is no module {error.name}: install its package, or name its folder in PYTHONPATH"
        ) from None
    except Exception as error:  # Code of others fails in any way.
        raise ConfigError(f"{key}: {place} cannot be imported: {type(error).__name__}: {error}") from None
    try:
        found = attrgetter(attribute)(module)
    except Exception:  # A module's own `__getattr__` may fail in any way, too.
        near = nearest(attribute, [other for other, value in vars(module).items() if fits(value)])
        hint = f"; did you mean {name}:{near}?" if near else ""
        raise ConfigError(f"{key}: {name} has no {attribute}{hint}") from None
    if not fits(found):
        raise ConfigError(f"{key}: {place} is of class {type(found).__name__}, not {wanted}")
    return found


def unknown(what: str, name: str, ours: Iterable[str], group: str, form: str) -> str:
    """Return the message that nothing of a kind has a name.

    Args:
        what: the kind, "reward" for example.
        name: the unknown name.
        ours: this project's names.
        group: the group of entry points that adds names.
        form: how a user names one's own, "package.module:function" for example.
    """
    known = {"ours are": list(ours), "installed are": list(installed(group))}
    listed = ", ".join(f"{whose} {', '.join(names)}" for whose, names in known.items() if names)
    hint = did_you_mean(name, sum(known.values(), []), listed or "none is installed")
    return f"there is no {what} called {name[:80]!r}: {hint}; yours is {form}"


def source_files(place: str) -> list[Path]:
    """Return the source file of an imported `package.module:NAME`; an empty list if its module has none."""
    file = sys.modules[place.partition(":")[0]].__file__
    return [] if file is None else [Path(file)]


def code_sha256(places: Iterable[str]) -> str | None:
    """Return the SHA-256 (hex) of the code of modules, each named by a `package.module:NAME`.

    That is each module's source file, or where it lies in a package all source files of the folder and those below.
    None: a module has no source file, as where it is compiled.
    """
    digest = hashlib.sha256()
    for name in dict.fromkeys(place.partition(":")[0] for place in places):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None
        file = Path(spec.origin)
        folder = file.parent
        for path in sorted(folder.rglob("*.py")) if spec.parent else [file]:
            digest.update(f"{path.relative_to(folder).as_posix()}\n{path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
