"""What the wheel of torch-npu says of itself: its sources are read, and never imported."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import torch

VERSION = "2.13.0"
SCHEMAS = "torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml"
NAMESPACE = "torch_npu/npu/__init__.py"
ADAPTOR = "torch_npu/contrib/transfer_to_npu.py"
AUTOGRAD = "torch_npu/include/torch_npu/csrc/aten/VariableType.h"
LIBRARY = "torch_npu/lib/libtorch_npu.so"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "efficientbench_tests"


class NoWheelError(Exception):
    """The wheel is not here and cannot be had."""


@functools.cache
def wheel() -> zipfile.ZipFile:
    """The wheel of one platform (its Python sources are those of all), downloaded once.

    Raises NoWheelError with pip's last words.
    """
    found = sorted(CACHE.glob(f"torch_npu-{VERSION}-*.whl"))
    if not found:
        platform = ("--platform", "manylinux_2_28_x86_64", "--python-version", "3.11", "--only-binary", ":all:")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *platform]
        done = subprocess.run(
            [*command, "--dest", str(CACHE), f"torch-npu=={VERSION}"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NoWheelError(done.stderr.strip().rpartition("\n")[2] or "pip download failed")
        found = sorted(CACHE.glob(f"torch_npu-{VERSION}-*.whl"))
    return zipfile.ZipFile(found[0])


def text(member: str) -> str:
    """One of the wheel's files."""
    return wheel().read(member).decode("utf-8")


@functools.cache
def schemas() -> dict[str, list[torch._C.FunctionSchema]]:
    """Operator → its signatures, as the package exposes them under its own name."""
    found: dict[str, list[torch._C.FunctionSchema]] = {}
    for line in re.findall(r"^\s*(?:- )?func: (npu_.*)$", text(SCHEMAS), re.MULTILINE):
        try:
            schema = torch._C.parse_schema(line.strip().strip("'\""))
        except RuntimeError:
            continue
        found.setdefault(schema.name.removeprefix("aten::"), []).append(schema)
    return found


@functools.cache
def namespace_names() -> frozenset[str]:
    """What `torch_npu.npu` binds: `__all__`, functions, classes, imports and assignments of its source."""
    names: set[str] = set()
    for node in ast.parse(text(NAMESPACE)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound = [target.id for target in targets if isinstance(target, ast.Name)]
            names |= set(ast.literal_eval(node.value)) if bound == ["__all__"] else set(bound)
    return frozenset(names - {"*"})


def adaptor_list(name: str) -> list[str]:
    """A list that `transfer_to_npu` assigns to `name`."""
    for node in ast.parse(text(ADAPTOR)).body:
        if isinstance(node, ast.Assign) and [each.id for each in node.targets if isinstance(each, ast.Name)] == [name]:
            return list(ast.literal_eval(node.value))
    raise KeyError(name)


def differentiable() -> set[str]:
    """Operators that torch_npu registers a gradient for."""
    return set(re.findall(r"\b(npu_\w+)\(c10::DispatchKeySet", text(AUTOGRAD)))
