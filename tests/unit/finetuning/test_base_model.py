"""The base model: one that is missing, and the tiny one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from efficientbench.config.errors import ConfigError
from efficientbench.finetuning.base_model import find_model, load_tokenizer
from efficientbench.finetuning.shapes import shape_of


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is neither a folder with a model nor one that the hub gives"):
        find_model(str(tmp_path), tmp_path)


@pytest.mark.proof
def test_the_tiny_model_is_the_same_each_time_and_is_made_once(tmp_path: Path) -> None:
    folders = [Path(find_model("tiny", tmp_path / name)) for name in ("one", "two")]
    sums = [hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() for folder in folders]
    assert sums[0] == sums[1]
    written_s = (folders[0] / "config.json").stat().st_mtime
    assert find_model("tiny", tmp_path / "one") == str(folders[0])
    assert (folders[0] / "config.json").stat().st_mtime == written_s
    tokenizer = load_tokenizer(str(folders[0]))
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert shape_of(str(folders[0])).parameters == 214_080
