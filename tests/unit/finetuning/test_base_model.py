"""The base model: one that is missing, and the tiny one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from replicas.modelscope_server import served

from efficientbench.basics.errors import ConfigError
from efficientbench.finetuning.base_model import find_model, load_tokenizer, make_tiny
from efficientbench.finetuning.planning.shapes import shape_of


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


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("modelscope:owner/some", "has no weights in .safetensors files"),
        ("modelscope:owner/other", "no such repository or revision"),
        ("modelscope:../some", "cannot be a name on ModelScope"),
    ],
)
def test_a_model_that_modelscope_lacks_is_refused(
    model: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path))
    files = {"config.json": b"{}", "pytorch_model.bin": b"a pickle"}
    with served(files, "models", monkeypatch), pytest.raises(ConfigError, match=f"model: .*{message}"):
        find_model(model, tmp_path)


@pytest.mark.proof
def test_a_model_of_modelscope_is_fetched_without_pickles_and_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    make_tiny(tmp_path / "made")
    files = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))
    others = {"pytorch_model.bin": b"a pickle", "modeling_own.py": b"print(1)", "figures/loss.json": b"{}"}
    with served({**files, **others}, "models", monkeypatch) as site:
        found = Path(find_model("modelscope:owner/some", tmp_path))
    assert {asked["FilePath"] for path, asked, _ in site.asked if path.endswith("/repo")} == set(files)
    assert {name: (found / name).read_bytes() for name in files} == files
    assert load_tokenizer(str(found)).eos_token == "<|im_end|>"
    loaded = AutoModelForCausalLM.from_pretrained(found)
    assert loaded.num_parameters() == shape_of(str(found)).parameters
    # Without the site, what was fetched serves.
    assert find_model("modelscope:owner/some", tmp_path) == str(found)
