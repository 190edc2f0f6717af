"""What is checked of saved files, and PiSSA's adapter on the base's own weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from efficientbench.finetuning.saved import ADAPTER, ADAPTER_CONFIG, SavingError, as_plain_lora, doubled, verify

SHAPES = {"layer.lora_A.weight": (2, 6), "layer.lora_B.weight": (4, 2)}


def adapter(folder: Path, **changes: torch.Tensor) -> Path:
    torch.manual_seed(0)
    tensors = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    save_file(tensors | {f"layer.lora_{key}.weight": value for key, value in changes.items()}, folder / ADAPTER)
    return folder


def test_intact_saved_files_pass(tmp_path: Path) -> None:
    assert verify(adapter(tmp_path), SHAPES) == 12 + 8


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        # What one rank alone saves of partitioned weights.
        ({"A": torch.zeros(0)}, r"layer.lora_A.weight has the shape \(0,\) instead of \(2, 6\)"),
        ({"B": torch.full((4, 2), torch.nan)}, "layer.lora_B.weight holds numbers that are not finite"),
        ({"B": torch.zeros(4, 2)}, "all of lora_B is zero: nothing was learned"),
        ({"C": torch.ones(1)}, "layer.lora_C.weight is of no trained tensor"),
    ],
)
def test_saved_files_that_differ_from_the_trained_weights_fail(
    tmp_path: Path, changes: dict[str, torch.Tensor], told: str
) -> None:
    with pytest.raises(SavingError, match=told):
        verify(adapter(tmp_path, **changes), SHAPES)


def test_a_missing_tensor_fails_unless_the_format_omits_it(tmp_path: Path) -> None:
    more = {**SHAPES, "output.weight": (3, 3)}
    with pytest.raises(SavingError, match="output.weight is missing"):
        verify(adapter(tmp_path), more)
    assert verify(tmp_path, more, frozenset({"output.weight"})) == 20


def test_matrices_with_nonzero_initial_values_must_have_changed(tmp_path: Path) -> None:
    """PiSSA's B is not zero at the start."""
    initial = load_file(adapter(tmp_path) / ADAPTER)
    with pytest.raises(SavingError, match="all is as it began: nothing was learned"):
        verify(tmp_path, SHAPES, initial=initial)
    adapter(tmp_path, A=initial["layer.lora_A.weight"] + 1)
    assert verify(tmp_path, SHAPES, initial=initial) == 20


def test_pissas_adapter_on_the_base_matches_the_trained_model(tmp_path: Path) -> None:
    adapter(tmp_path)
    (tmp_path / ADAPTER_CONFIG).write_text(json.dumps({"r": 2, "lora_alpha": 6, "init_lora_weights": "pissa"}))
    trained = load_file(tmp_path / ADAPTER)
    initial = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    base, scale = torch.randn(4, 6), 6 / 2
    a, b = (f"layer.lora_{matrix}.weight" for matrix in "AB")
    wanted = base - scale * initial[b] @ initial[a] + scale * trained[b] @ trained[a]
    as_plain_lora(tmp_path, initial)
    config, plain = json.loads((tmp_path / ADAPTER_CONFIG).read_text()), load_file(tmp_path / ADAPTER)
    assert (config["r"], config["lora_alpha"], config["init_lora_weights"]) == (4, 12, True)
    torch.testing.assert_close(base + config["lora_alpha"] / config["r"] * plain[b] @ plain[a], wanted)
    assert verify(tmp_path, doubled(SHAPES)) == 40
