"""Find a torch with an accelerator in the interpreter that runs this file, and write pins that leave it in place.

bootstrap.sh runs `python3 launchers/environment/image_torch.py CONSTRAINTS OUTPUT` with the machine's own
interpreter, before anything of ours is installed: standard library only. Exit status 0: such a torch is there, OUTPUT
holds the pins to install beside it, and stdout names it (first line, for people), its metadata folder (second line)
and the folders that a virtual environment has to see (further lines, if this interpreter is itself in one). Exit status
3: there is none.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import site
import sys
from pathlib import Path

NO_ACCELERATOR = 3


def normalized(name: str) -> str:
    """Return the name under which package indexes know a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement: str) -> str:
    """Return the normalized name at the beginning of a requirement, such as `numpy<2; python_version<"3.12"`.

    Raises:
        ValueError: the requirement does not begin with a name.
    """
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    if match is None:
        raise ValueError(f"no distribution name in requirement {requirement!r}")
    return normalized(match.group(1))


def accelerator() -> str | None:
    """Return "npu" or "cuda" where this interpreter's torch has such a device, else None.

    The presence of torch_npu is enough: it imports only after CANN's environment script was sourced.
    """
    if importlib.util.find_spec("torch") is None:
        return None
    if importlib.util.find_spec("torch_npu") is not None:
        return "npu"
    try:
        import torch
    except Exception as error:
        print(f"python3 has a torch that does not import ({error}): it is not used", file=sys.stderr)
        return None
    return "cuda" if torch.cuda.is_available() else None


def needed_by(roots: list[str]) -> set[str]:
    """Return the normalized names of the installed distributions that `roots` need, directly or not, without extras."""
    seen: set[str] = set()
    pending = [normalized(root) for root in roots]
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        seen.add(name)
        pending += [requirement_name(line) for line in requirements if "extra ==" not in line]
    return seen


def pins_beside_image(pins: list[str]) -> list[str]:
    """Return our pins without torch and all that it needs, plus the image's versions of torch, torch-npu and numpy.

    The packages that torch needs are not pinned: pip keeps the image's version where that also serves us, and the
    image's torch declares its requirements. numpy is pinned, since torch is compiled against it.
    """
    held = {}
    for name in ("torch", "torch-npu", "numpy"):
        try:
            held[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    left_out = needed_by(["torch", "torch-npu"]) | set(held)
    kept = [pin for pin in pins if requirement_name(pin) not in left_out]
    return kept + [f"{name}=={version}" for name, version in held.items()]


def metadata_folder(name: str) -> Path:
    """Return the metadata folder of an installed distribution, which is removed when another version replaces it."""
    distribution = importlib.metadata.distribution(name)
    for file in distribution.files or []:
        if file.parent.suffix in (".dist-info", ".egg-info"):
            return Path(str(distribution.locate_file(file))).parent
    return Path(str(distribution.locate_file(name)))


def main(constraints: Path, output: Path) -> int:
    """Write the pins to `output`, print the torch that was found, and return the exit status."""
    device = accelerator()
    if device is None:
        return NO_ACCELERATOR
    version = importlib.metadata.version("torch")
    lines = constraints.read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    output.write_text("\n".join(pins_beside_image(pins)) + "\n", encoding="utf-8")
    print(f"torch {version} ({device})")
    print(metadata_folder("torch"))
    if sys.prefix != sys.base_prefix:
        print("\n".join(site.getsitepackages()))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
