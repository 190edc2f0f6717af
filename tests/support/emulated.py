"""A Debian of another processor on this machine: its root folder, and commands that run there under qemu-user."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

QEMU = "qemu-aarch64-static"
HANDLERS = Path("/proc/sys/fs/binfmt_misc")
ELF_HEADER = "7f454c460201010000000000000000000200b700"
"""The first bytes of a 64-bit program of aarch64, as the kernel writes them where it lists a handler."""
HEADER_MASK = "ffffffffffffff00fffffffffffffffffeffffff"
PACKAGES = ("git", "python3", "python3-venv")
WHEELS = "/srv/wheels"
PLATFORMS = ("manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in range(17, 37)))
"""What the C library of Debian 12 and newer runs."""
IN_NAMESPACE = (
    'root="$1" && shift && mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" && '
    'mount --rbind /dev "$root/dev" && exec chroot "$root" "$@"'
)
"""Mounts that end with the command."""


@dataclass(frozen=True)
class Machine:
    """An emulated machine: its root folder, the processor that qemu shows, and how its programs are started."""

    root: Path
    processor: str
    by_kernel: bool
    """Whether the kernel starts qemu for each program (binfmt_misc); else proot does."""

    def words(self, words: Sequence[str], folder: str = "/") -> list[str]:
        """Return the command that runs `words` in a folder of the machine."""
        variables = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "LC_ALL": "C.UTF-8",
            "QEMU_CPU": self.processor,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": WHEELS,
            # Else it compiles for an hour what is never imported.
            "PIP_NO_COMPILE": "1",
        }
        settings = [f"{name}={value}" for name, value in variables.items()]
        inside = ["/usr/bin/env", "-i", "-C", folder, *settings, *words]
        if self.by_kernel:
            return ["unshare", "--mount", "sh", "-c", IN_NAMESPACE, "sh", str(self.root), *inside]
        emulator = ["env", f"QEMU_CPU={self.processor}", "proot", "-q", QEMU]
        return [*emulator, "-S", str(self.root), "-w", "/", *inside]

    def call(self, words: Sequence[str], log: Path, folder: str = "/", limit_s: float | None = None) -> int:
        """Run `words` to their end and return the exit code; `log` takes what is printed.

        Raises subprocess.TimeoutExpired.
        """
        with log.open("w", encoding="utf-8") as file:
            running = subprocess.Popen(
                self.words(words, folder), stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
            try:
                return running.wait(limit_s)
            except BaseException:
                # Also of an interrupted call nothing goes on that nobody waits for.
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
                raise

    def path(self, inside: str) -> Path:
        """Return where a path of the machine lies on this one."""
        return self.root / inside.lstrip("/")


def starts_by_kernel() -> bool:
    """Return whether the kernel starts qemu for programs of aarch64, after asking it to where it can be asked."""
    if not (HANDLERS / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "none", str(HANDLERS)], capture_output=True, check=False)
    if any(f"magic {ELF_HEADER}" in each.read_text() for each in HANDLERS.glob("[!rs]*")):
        return True
    parts = ("".join(f"\\x{code[i : i + 2]}" for i in range(0, 40, 2)) for code in (ELF_HEADER, HEADER_MASK))
    try:
        # F: the kernel opens qemu now, so that it need not lie in the machine's folder.
        (HANDLERS / "register").write_text(f":qemu-aarch64:M::{':'.join(parts)}:{shutil.which(QEMU)}:F")
    except OSError:
        return False
    return True


def debian(folder: Path, suite: str, mirror: str, log: Path) -> None:
    """Unpack Debian's arm64 into `folder`, and configure it there; what is there already is kept.

    Raises subprocess.CalledProcessError: debootstrap failed; the next call starts anew.
    """
    own = folder / "debootstrap"
    with log.open("a", encoding="utf-8") as file:
        if not (own / "debootstrap").exists() and (own.exists() or not (folder / "usr/bin/git").exists()):
            shutil.rmtree(folder, ignore_errors=True)
            first = ["debootstrap", "--foreign", "--arch=arm64", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
            subprocess.run([*first, suite, str(folder), mirror], stdout=file, stderr=file, check=True)
        if own.exists():
            second = Machine(folder, "max", starts_by_kernel()).words(["/debootstrap/debootstrap", "--second-stage"])
            try:
                subprocess.run(second, stdout=file, stderr=file, check=True)
            except subprocess.CalledProcessError:
                shutil.rmtree(folder)
                raise
    # Ranks find each other by the host's name.
    shutil.copyfile("/etc/hosts", folder / "etc/hosts")


def download(requirements: Sequence[str], constraints: Path, python: str, target: Path, log: Path) -> None:
    """Download from pip's index what a Python of aarch64 installs for these requirements, wheels alone.

    The requirements of each package are read as this machine's Python reads them, which is to be of the same release.
    Raises subprocess.CalledProcessError: a package has no wheel, or the index cannot be reached.
    """
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    pip = [sys.executable, "-m", "pip", "download", "--progress-bar", "off", "--no-cache-dir", "--only-binary=:all:"]
    words = [*pip, "--implementation=cp", f"--python-version={python}", *platforms, f"--constraint={constraints}"]
    with log.open("w", encoding="utf-8") as file:
        subprocess.run([*words, f"--dest={target}", *requirements], stdout=file, stderr=file, check=True)


def said_by_qemu(text: str) -> str:
    """Return qemu's own line about a program that it ended, after a colon; nothing where there is none."""
    found = re.findall(r"^.*(?:qemu: |Illegal instruction|unhandled).*$", text, re.MULTILINE)
    return f": {found[-1].strip()}" if found else ""
