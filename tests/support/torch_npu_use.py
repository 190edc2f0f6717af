"""Where code uses torch_npu: every name that it takes from the package, or from the namespace `npu`, and how."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

PACKAGE, NAMESPACE = "torch_npu", "torch_npu.npu"
# How the code gets hold of them.
CALLS = {"torch_npu": PACKAGE, "npu_namespace": NAMESPACE}


@dataclass(frozen=True)
class Use:
    """One name taken from the package or its namespace."""

    owner: str
    name: str
    line: int
    arguments: int | None = None
    """Positional arguments of the call; None where it is not called."""
    keywords: tuple[str, ...] = ()


def uses(source: str) -> Iterator[Use]:
    """Every use in a module's source, whether through the names themselves, a call or a variable."""
    tree = ast.parse(source)
    aliases = _aliases(tree)
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (owner := _owner(node.value, aliases)) is not None:
            call = calls.get(id(node))
            if call is None:
                yield Use(owner, node.attr, node.lineno)
            else:
                keywords = tuple(keyword.arg for keyword in call.keywords if keyword.arg is not None)
                yield Use(owner, node.attr, node.lineno, len(call.args), keywords)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr"):
            owner = _owner(node.args[0], aliases)
            if owner is not None and isinstance(node.args[1], ast.Constant):
                yield Use(owner, str(node.args[1].value), node.lineno)


def _owner(node: ast.expr, aliases: dict[str, str]) -> str | None:
    """Which of the two an expression is; None for anything else."""
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
    """Names that stand for one of the two anywhere in the module."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: PACKAGE for alias in node.names if alias.name == PACKAGE}
        elif isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            found |= {alias.asname or alias.name: NAMESPACE for alias in node.names if alias.name == "npu"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            owner = _owner(node.value, found)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if owner is not None:
                found |= {target.id: owner for target in targets if isinstance(target, ast.Name)}
    return found
