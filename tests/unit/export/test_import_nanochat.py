"""What `import` refuses of nanochat's own files, none of which runs code."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import nanochat_files
from support.releases import TRANSFORMERS_5

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer, train_tokenizer
from efficientbench.export.importing import import_folder

pytestmark = TRANSFORMERS_5


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoModelForCausalLM, NanoChatConfig

    folder = tmp_path_factory.mktemp("nanochat")
    train_tokenizer([Path(__file__).read_text()], 300, folder / "own")
    encoding = nanochat_files.encoding_of(load_tokenizer(folder / "own"))
    shapes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 8}
    config = NanoChatConfig(vocab_size=encoding.n_vocab, intermediate_size=64, **shapes)
    nanochat_files.write(folder / "d1", AutoModelForCausalLM.from_config(config), encoding)
    return folder / "d1"


class RunsCode:
    """Makes the folder `ran` where its pickle is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("ran",)


def model_that_runs_code(folder: Path) -> str:
    torch.save({"transformer.wte.weight": RunsCode()}, folder / "model_000020.pt")
    return f"{folder / 'model_000020.pt'}: refused, damaged or no plain data (Weights only load failed"


def model_without_names(folder: Path) -> str:
    torch.save(torch.ones(1), folder / "model_000020.pt")
    return f"{folder / 'model_000020.pt'}: it holds no tensors by name"


def tokenizer_that_runs_code(folder: Path) -> str:
    (folder / "tokenizer.pkl").write_bytes(pickle.dumps(RunsCode()))
    return f"{folder / 'tokenizer.pkl'}: refused, it uses "


def tokenizer_that_runs_code_when_its_state_is_set(folder: Path) -> str:
    # The opcodes of an encoding alone, for another class.
    (folder / "tokenizer.pkl").write_bytes(b"\x80\x04\x8c\x02os\x8c\x08_Environ\x93)\x81}b.")
    return f"{folder / 'tokenizer.pkl'}: refused, it names os._Environ, and tiktoken.core.Encoding alone would be"


def tokenizer_that_takes_all_memory(folder: Path) -> str:
    (folder / "tokenizer.pkl").write_bytes(b"\x80\x04}r\xff\xff\xff\xff.")
    return f"{folder / 'tokenizer.pkl'}: refused, it uses LONG_BINPUT"


def lengths_that_run_code(folder: Path) -> str:
    torch.save(RunsCode(), folder / "token_bytes.pt")
    return f"{folder / 'token_bytes.pt'}: refused, damaged or no plain data"


def cut_the_tokenizer(folder: Path) -> str:
    (folder / "tokenizer.pkl").write_bytes((folder / "tokenizer.pkl").read_bytes()[:-9])
    return f"{folder / 'tokenizer.pkl'}: damaged, or no encoding"


def no_encoding(folder: Path) -> str:
    (folder / "tokenizer.pkl").write_bytes(pickle.dumps({"pat_str": "a"}))
    return f"{folder / 'tokenizer.pkl'}: damaged, or no encoding"


def remove_the_tokenizer(folder: Path) -> str:
    (folder / "tokenizer.pkl").unlink()
    return f"{folder / 'tokenizer.pkl'} is missing, and "


def another_tokenizers_lengths(folder: Path) -> str:
    lengths = torch.load(folder / "token_bytes.pt", weights_only=True)
    lengths[65] += 1
    torch.save(lengths, folder / "token_bytes.pt")
    return f"{folder / 'token_bytes.pt'}: token 65 has 2 bytes, and 1 in tokenizer.pkl"


def remove_the_configuration(folder: Path) -> str:
    (folder / "meta_000020.json").unlink()
    return f"{folder / 'meta_000020.json'}: No such file"


def windows(folder: Path) -> str:
    meta = json.loads((folder / "meta_000020.json").read_text())
    meta["model_config"] |= {"window_pattern": "SSSL"}
    (folder / "meta_000020.json").write_text(json.dumps(meta))
    return f"{folder / 'meta_000020.json'}: window_pattern is 'SSSL', and no model here computes with it"


def a_later_model(folder: Path) -> str:
    state = OrderedDict(torch.load(folder / "model_000020.pt", weights_only=True), x0_lambdas=torch.ones(1))
    torch.save(state, folder / "model_000030.pt")
    shutil.copy(folder / "meta_000020.json", folder / "meta_000030.json")
    return f"{folder / 'model_000030.pt'}: it has x0_lambdas, and no model here computes with it"


@pytest.mark.parametrize(
    "spoil",
    [
        *(model_that_runs_code, tokenizer_that_runs_code, tokenizer_that_runs_code_when_its_state_is_set),
        *(tokenizer_that_takes_all_memory, lengths_that_run_code, cut_the_tokenizer, no_encoding),
        *(
            model_without_names,
            remove_the_tokenizer,
            another_tokenizers_lengths,
            remove_the_configuration,
            windows,
            a_later_model,
        ),
    ],
)
def test_what_is_refused(
    original: Path, spoil: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(original, tmp_path / "a" / "d1")
    message = spoil(folder)
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, DataError)) as error:
        import_folder(folder, tmp_path / "run")
    assert str(error.value).startswith(message)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "run").exists()
