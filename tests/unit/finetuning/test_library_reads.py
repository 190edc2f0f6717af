"""How the library that resumes a fine-tuning reads a checkpoint's pickles."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest


def test_transformers_trainer_unpickles_only_plain_data() -> None:
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        pytest.skip("transformers is not installed")
    tree = ast.parse(Path(found.origin).with_name("trainer.py").read_text(encoding="utf-8"))
    names = [(node, ast.unparse(node.func)) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    loads = [node for node, name in names if name == "torch.load"]
    # Of optimizer.pt, scheduler.pt and rng_state_*.pth, among others.
    assert len(loads) >= 5
    for node in loads:
        assert "weights_only=True" in [ast.unparse(each) for each in node.keywords], f"line {node.lineno}"
    assert not [node.lineno for node, name in names if name.startswith("pickle.")]
