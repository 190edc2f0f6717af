"""The base model: one that is missing, and the tiny one."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from replicas.hub_server import COMMIT, hub_server
from replicas.modelscope_server import served
from safetensors.torch import load_file
from support.repository import ROOT

from efficientbench.basics.errors import ConfigError
from efficientbench.basics.foreign import MOST_BYTES
from efficientbench.finetuning.base_model import find_model, load_tokenizer, make_tiny
from efficientbench.finetuning.config import TINY_SHAPE
from efficientbench.finetuning.planning.shapes import shape_of


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is neither a folder with a model nor one that the hub gives"):
        find_model(str(tmp_path), tmp_path)


def test_only_files_that_transformers_opens_are_checked(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_SHAPE))
    # What lies beside a model: examples, notes, a folder, a link that leads nowhere.
    with (tmp_path / "train.json").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    (tmp_path / "runs.json").mkdir()
    (tmp_path / "notes.txt").symlink_to(tmp_path / "gone")
    assert find_model(str(tmp_path), tmp_path) == str(tmp_path)
    for name in ("tokenizer.json", "chat_template.jinja", "model-00001-of-00002.safetensors"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(ConfigError, match=f"{name}: cannot be read"):
            find_model(str(tmp_path), tmp_path)
        (tmp_path / name).unlink()


def test_more_layers_than_a_model_has_are_refused(tmp_path: Path) -> None:
    # transformers would list each of them, until no memory is left.
    text = json.dumps({"model_type": "qwen2", "text_config": {"num_hidden_layers": 2**70}})
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=f"config.json: num_hidden_layers is {2**70}, and at most 10000 would be"):
        find_model(str(tmp_path), tmp_path)


@pytest.mark.proof
def test_the_tiny_model_is_reproducible_and_made_once(tmp_path: Path) -> None:
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
def test_a_modelscope_model_is_fetched_without_pickles_and_code(
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


@pytest.mark.proof
@pytest.mark.parametrize("pickled", [False, True])
def test_the_weights_of_a_hub_model_are_fetched_before_any_rank_starts(tmp_path: Path, pickled: bool) -> None:
    make_tiny(tmp_path / "made")
    files = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    if pickled:
        torch.save(load_file(tmp_path / "made" / "model.safetensors"), tmp_path / "weights")
        del files["model.safetensors"]
    # Pickles are fetched only where there is nothing else.
    files["pytorch_model.bin"] = (tmp_path / "weights").read_bytes() if pickled else b"a pickle"
    others = dict.fromkeys(("modeling_own.py", "consolidated.safetensors", "c-5/model.safetensors"), b"not asked for")
    with hub_server({**files, **others}) as hub:
        hub.kind, hub.repository = "models", "owner/some"
        found = in_a_process(
            f"from efficientbench.finetuning.base_model import find_model\n"
            f"print(find_model('owner/some', Path({str(tmp_path)!r})))",
            {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"},
        )
        got = {path.partition(f"/{COMMIT}/")[2] for kind, path, _ in hub.requests if kind == "resolve"}
    assert found == "owner/some"
    assert got == set(files) - (set() if pickled else {"pytorch_model.bin"})
    # As the ranks load it.
    loaded = in_a_process(
        "from transformers import AutoModelForCausalLM\n"
        "print(AutoModelForCausalLM.from_pretrained('owner/some').num_parameters())",
        {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
    )
    assert int(loaded) == 214_080


def in_a_process(code: str, variables: dict[str, str]) -> str:
    """What a fresh process prints, since the hub's library reads its variables once."""
    done = subprocess.run(
        [sys.executable, "-c", f"from pathlib import Path\n{code}"],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()
