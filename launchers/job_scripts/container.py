"""The surroundings of a run on its node: the cluster's modules, and the run's container."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from efficientbench.basics.errors import LaunchError

Engine = Literal["pyxis", "apptainer", "docker"]

SCRIPTS = Path(__file__).resolve().parent
ROOT = SCRIPTS.parents[1]
"""The repository, or the package where a wheel was installed: containers have to see its scripts."""

IMAGE = re.compile(r"[A-Za-z0-9_./~][^\s,]*")
MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]*")
FILES = (".sif", ".sqsh", ".img")
"""Suffixes of images that are files."""


@dataclass(frozen=True)
class Container:
    """A container that an engine starts on every node."""

    image: str
    """The image's name for docker, like nvcr.io/nvidia/pytorch:25.03-py3, or the file of an image."""
    engine: Engine
    mounts: tuple[Path, ...] = ()
    """Folders that the run sees under their own paths, besides the working folder and our scripts."""

    def __post_init__(self) -> None:
        if not IMAGE.fullmatch(self.image):
            raise LaunchError(f"--container: {self.image[:80]!r} names no image: write REGISTRY/NAME:TAG or a file")
        if self.engine == "docker" and self._is_file:
            raise LaunchError(f"--container: docker takes the name of an image, and {self.image} is a file")

    def words(self, folder: Path, extras: Sequence[str]) -> list[str]:
        """Return the words that stand before a command to run it in `folder` in the container.

        The words for pyxis begin with options of srun. `extras`: extras for launchers/bootstrap.sh, where the image has
        no efficientbench.

        Raises LaunchError: a folder's name cannot be written in a mount.
        """
        inside = ["bash", str(SCRIPTS / "in_container.sh"), *extras, "--"]
        mounts = [str(each) for each in self._outermost([folder, ROOT, *self.mounts])]
        if wrong := [each for each in mounts if re.search("[:,]", each)]:
            raise LaunchError(f"--container: {wrong[0]} has a colon or a comma, which no engine can mount")
        if self.engine == "pyxis":
            pairs = ",".join(f"{each}:{each}" for each in mounts)
            options = [f"--container-image={self._as_named(folder)}", f"--container-mounts={pairs}"]
            return [*options, f"--container-workdir={folder}", *inside]
        start = ["bash", str(SCRIPTS / "container.sh"), self.engine, self._as_named(folder), str(folder)]
        return [*start, *mounts, "--", *inside]

    @property
    def _is_file(self) -> bool:
        return self.image.startswith(("/", "./", "../", "~")) or self.image.endswith(FILES)

    def _as_named(self, folder: Path) -> str:
        """Return the image as the engine names it."""
        name = self.image.removeprefix("docker://")
        if self._is_file:
            return str(folder / os.path.expanduser(name))
        if self.engine == "apptainer":
            return name if "://" in name else f"docker://{name}"
        registry, slash, rest = name.partition("/")
        if self.engine == "pyxis" and slash and (re.search("[.:]", registry) or registry == "localhost"):
            # An enroot URI separates the registry from the image by #.
            return f"{registry}#{rest}"
        return name

    @staticmethod
    def _outermost(folders: Sequence[Path]) -> list[Path]:
        """Return the folders that lie in none of the others, each once: no engine mounts one twice."""
        return [each for each in dict.fromkeys(folders) if not any(other in each.parents for other in folders)]


@dataclass(frozen=True)
class Surroundings:
    """What a script sets up before it starts the run."""

    modules: tuple[str, ...] = ()
    """Modules for `module load`, in this order."""
    container: Container | None = None

    def __post_init__(self) -> None:
        for name in self.modules:
            if not MODULE.fullmatch(name):
                raise LaunchError(f"--module: {name[:80]!r} is not a module name: write, for example, cuda/13.0")

    def set_up(self, extras: Sequence[str]) -> list[str]:
        """Return the script's lines that set up the node: modules, and the Python environment outside of containers."""
        lines = [f"job_modules {shlex.join(self.modules)}"] if self.modules else []
        return lines if self.container else [*lines, shlex.join(["bootstrap", *extras])]

    def before_command(self, folder: Path, extras: Sequence[str]) -> list[str]:
        """Return the words before the command that trains; none without a container. Raises as `Container.words`."""
        return self.container.words(folder, extras) if self.container else []


BARE = Surroundings()
"""Nothing but the Python environment."""
