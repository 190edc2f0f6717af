"""Names and signatures in the wheel of torch-npu, read without an import, and the uses of them in source code."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

VERSION = "2.13.0"
SCHEMAS = "torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml"
NAMESPACE_SOURCE = "torch_npu/npu/__init__.py"
ADAPTOR = "torch_npu/contrib/transfer_to_npu.py"
AUTOGRAD = "torch_npu/include/torch_npu/csrc/aten/VariableType.h"
LIBRARY = "torch_npu/lib/libtorch_npu.so"
PACKAGE, NAMESPACE = "torch_npu", "torch_npu.npu"
CALLS = {"torch_npu": PACKAGE, "npu_namespace": NAMESPACE}
"""Function of this project → module that it returns."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "efficientbench_tests"


class NoWheelError(Exception):
    """The wheel is not in the cache and cannot be downloaded."""


@functools.cache
def wheel() -> zipfile.ZipFile:
    """Open the wheel of one platform, downloaded once; its Python sources are those of all platforms.

    Raises NoWheelError: it cannot be downloaded, with the last line of pip's errors.
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
    """Read one of the wheel's files."""
    return wheel().read(member).decode("utf-8")


@functools.cache
def schemas() -> dict[str, list[torch._C.FunctionSchema]]:
    """Return the signatures of each operator under its name in the package."""
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
    """Return the names in `torch_npu.npu`: `__all__`, functions, classes, imports and assignments of its source."""
    names: set[str] = set()
    for node in ast.parse(text(NAMESPACE_SOURCE)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        else:
            names |= {name for name, _ in _assignments(node)}
    return frozenset(names | assigned(text(NAMESPACE_SOURCE), "__all__")) - {"*"}


def assigned(source: str, name: str) -> set[str]:
    """Return the list that a module's source assigns to `name`."""
    values = [value for node in ast.parse(source).body for target, value in _assignments(node) if target == name]
    return set(ast.literal_eval(values[0]))


def _assignments(node: ast.AST) -> list[tuple[str, ast.expr]]:
    """Return the names to which a statement assigns a value, each with the value."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [(target.id, node.value) for target in targets if isinstance(target, ast.Name)]


def differentiable() -> set[str]:
    """Return the operators for which torch_npu registers a gradient."""
    return set(re.findall(r"\b(npu_\w+)\(c10::DispatchKeySet", text(AUTOGRAD)))


@dataclass(frozen=True)
class Use:
    """One use of a name in the package or its namespace `npu`."""

    owner: str
    """PACKAGE or NAMESPACE."""
    name: str
    line: int
    arguments: int | None = None
    """Positional arguments of the call; None where it is not called."""
    keywords: tuple[str, ...] = ()


def uses(source: str) -> Iterator[Use]:
    """Yield every use in a module's source, through the names themselves, a call or a variable."""
    tree = ast.parse(source)
    aliases = _aliases(tree)
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (owner := _owner(node.value, aliases)) is not None:
            call = calls.get(id(node))
            arguments = len(call.args) if call else None
            keywords = tuple(keyword.arg for keyword in call.keywords if keyword.arg is not None) if call else ()
            yield Use(owner, node.attr, node.lineno, arguments, keywords)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr"):
            owner = _owner(node.args[0], aliases)
            if owner is not None and isinstance(node.args[1], ast.Constant):
                yield Use(owner, str(node.args[1].value), node.lineno)


def _owner(node: ast.expr, aliases: dict[str, str]) -> str | None:
    """Return which of the two an expression is; None for anything else."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    if isinstance(node, ast.Attribute):
        if node.attr == "npu" and isinstance(node.value, ast.Name) and node.value.id == "torch":
            return NAMESPACE
        return NAMESPACE if node.attr == "npu" and _owner(node.value, aliases) == PACKAGE else None
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "import_module" and node.args and isinstance(node.args[0], ast.Constant):
            return node.args[0].value if node.args[0].value in (PACKAGE, NAMESPACE) else None
        return CALLS.get(called)
    return None


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Return the names that stand for one of the two anywhere in the module."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: PACKAGE for alias in node.names if alias.name == PACKAGE}
        elif isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            found |= {alias.asname or alias.name: NAMESPACE for alias in node.names if alias.name == "npu"}
    for node in ast.walk(tree):
        for name, value in _assignments(node):
            if (owner := _owner(value, found)) is not None:
                found[name] = owner
    return found
