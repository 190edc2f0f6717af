"""What `import` refuses, by the name of the file, the key or the tensor, and that it leaves nothing."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.command_line import efficientbench
from support.configs import tiny
from support.releases import TRANSFORMERS_5

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer, train_tokenizer
from efficientbench.export.hugging_face import Model, write_model
from efficientbench.export.importing import import_folder
from efficientbench.export.safetensors_folder import Tensors, write_shards
from efficientbench.export.tensors import exported, weight_shapes

pytestmark = TRANSFORMERS_5
CONFIG = tiny("gqa_1.5B", "model.vocab_size=301", "model.embedding_multiplier=1")
INDEX = "model.safetensors.index.json"
LISTED = ["full_attention", "sliding_attention"]
NORM = "model.layers.1.input_layernorm.weight"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of Llama's class with random weights in several files."""
    folder, tokenizer = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("tokenizer") / "own"
    train_tokenizer([Path(__file__).read_text()], 300, tokenizer)
    weights = {name: torch.randn(shape) for name, shape in weight_shapes(CONFIG.model).items()}
    model = Model(CONFIG, weights, load_tokenizer(tokenizer))
    assert model.architecture == "llama"
    write_model(model, folder)
    (folder / "model.safetensors").unlink()
    write_shards(exported(weights, CONFIG.model, "llama"), folder, largest_bytes=50_000)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in original.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refused(folder: Path) -> str:
    """Why an import is refused; it must leave everything as it was."""
    output = folder.with_name("run")
    with pytest.raises((ConfigError, DataError)) as error:
        import_folder(folder, output)
    assert not output.exists()
    return str(error.value)


def test_releases_of_transformers_that_keep_the_rotation_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By name: other tests of this process may have loaded transformers anew.
    monkeypatch.setattr("transformers.__version__", "4.51.3")
    assert "an import needs transformers 5 or newer, and 4.51.3 is installed" in refused(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, 'model_type is "gpt2"; those that can be read: qwen2, llama, mistral, '),
        ({"model_type": "lama"}, 'model_type is "lama"; did you mean llama?'),
        ({"model_type": ["llama"]}, 'model_type is ["llama"]; those that can be read'),
        ({"hidden_act": "gelu"}, 'hidden_act is "gelu", "silu" would be right'),
        ({"mlp_bias": True}, "mlp_bias is true, false would be right"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}},
            '"factor": 2.0',
        ),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "refuses it: "),
        ({"model_type": "smollm3", "layer_types": LISTED, "no_rope_layers": [1, 1]}, ', "full_attention"] would be'),
        ({"model_type": "smollm3", "no_rope_layers": [0], "layer_types": LISTED[:1] * 2}, "is [0], [0, 1] would be"),
        (
            {"model_type": "smollm3", "layer_types": LISTED, "use_sliding_window": True, "sliding_window": -3},
            "sliding_window: -3 does not fit: input should be greater than or equal to 1",
        ),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_parameters is {"),
        ({"model_type": "qwen3_5_text", "layer_types": ["linear_attention"] * 2}, "layer_types has no full_attention"),
        (
            {"model_type": "bamba", "attn_layer_indices": [0, 1], "mamba_n_heads": 8},
            "layer_types has no linear_attention",
        ),
        (
            {"model_type": "bamba", "attn_layer_indices": [1], "mamba_n_heads": 8, "time_step_limit": [0.0, 0.1]},
            "time_step_limit is [0.0, 0.1], [0.0, Infinity] would be right",
        ),
        (
            {"model_type": "kimi_linear", "layer_types": ["linear_attention"] * 2, "rms_norm_eps": 1e-6},
            "layer_types has no full_attention",
        ),
        ({"model_type": "deepseek_v2", "rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05, 1e-06 would be right"),
        ({"num_key_value_heads": 3}, "cannot be shared evenly by 3 query groups: num_key_value_heads must divide"),
        ({"num_hidden_layers": "two"}, "transformers 5"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: Input should be greater than or equal to 1"),
        ({"auto_map": {"AutoModelForCausalLM": "mine.Model"}}, "auto_map is {"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: its weights are quantized"),
        ({"vocab_size": 200}, "vocab_size is 200, and the tokenizer has 3"),
        ({"num_hidden_layers": 3}, "model.layers.2.self_attn.q_proj.weight is missing"),
        ({"num_hidden_layers": 1}, "model.layers.1.input_layernorm.weight is no weight of a LlamaForCausalLM"),
        ({"intermediate_size": 81}, "has the shape [80, 48]; config.json makes it [81, 48]"),
        ({"attention_bias": False}, "_proj.bias is no weight of a LlamaForCausalLM"),
        ({"tie_word_embeddings": False}, "lm_head.weight is missing"),
    ],
)
def test_a_configuration_that_does_not_fit(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit(folder / "config.json", **changes)
    assert message in refused(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"model_type": "llama", "hidden_size": NaN}'])
def test_a_configuration_that_is_damaged(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    assert refused(folder).startswith(f"{folder / 'config.json'}: ")


def remove_a_shard(folder: Path) -> str:
    path = sorted(folder.glob("*.safetensors"))[1]
    path.unlink()
    return f"{path}: missing, and {INDEX} places "


def cut_a_shard(folder: Path) -> str:
    path = sorted(folder.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-1])
    return f"{path}: damaged or incomplete, it cannot be read as safetensors ("


def spoil_a_header(folder: Path) -> str:
    path = sorted(folder.glob("*.safetensors"))[1]
    path.write_bytes(b"\xff" * 100)
    return f"{path}: damaged or incomplete"


def place_outside(folder: Path) -> str:
    places = json.loads((folder / INDEX).read_text())["weight_map"]
    edit(folder / INDEX, weight_map=places | {NORM: "../copy/model.safetensors"})
    return f"{folder / INDEX}: places {NORM} in '../copy/model.safetensors', which is no safetensors file of"


def misplace(folder: Path) -> str:
    places = json.loads((folder / INDEX).read_text())["weight_map"]
    other = next(name for name in places.values() if name != places[NORM])
    edit(folder / INDEX, weight_map=places | {NORM: other})
    return f"{folder / other}: lacks {NORM}, which {INDEX} places there"


def damage_the_index(folder: Path) -> str:
    (folder / INDEX).write_text('{"weight_map": []}')
    return f"{folder / INDEX}: damaged, it has no weight_map"


def leave_pickles_alone(folder: Path) -> str:
    for path in [*folder.glob("*.safetensors"), folder / INDEX]:
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(ZeroDivisionError))
    return f"{folder}: neither model.safetensors nor {INDEX}; it has pytorch_model.bin, which is not read here"


def remove_the_tokenizer(folder: Path) -> str:
    (folder / "tokenizer.json").unlink()
    return f"{folder / 'tokenizer.json'} is missing: save_pretrained of a fast tokenizer"


def damage_the_tokenizer(folder: Path) -> str:
    (folder / "tokenizer.json").write_text("{}")
    return f"{folder / 'tokenizer.json'} cannot be read as a tokenizer"


def change_a_norm(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        path = folder / json.loads((folder / INDEX).read_text())["weight_map"][NORM]
        tensors = load_file(path)
        save_file(tensors | {NORM: change(tensors[NORM])}, path)

    return write


def another_dtype(folder: Path) -> str:
    change_a_norm(torch.Tensor.half)(folder)
    return f"{folder}: {NORM} is F16, and "


def a_dtype_of_no_model(folder: Path) -> str:
    change_a_norm(torch.Tensor.double)(folder)
    return f"{folder}: {NORM} is F64, and weights here are F32, BF16, F16"


def another_shape(folder: Path) -> str:
    change_a_norm(lambda norm: norm[1:].clone())(folder)
    return f"{folder}: {NORM} has the shape [47]; config.json makes it [48]"


@pytest.mark.parametrize(
    "spoil",
    [
        *(remove_a_shard, cut_a_shard, spoil_a_header, place_outside, misplace, damage_the_index),
        *(leave_pickles_alone, remove_the_tokenizer, damage_the_tokenizer),
        *(another_dtype, a_dtype_of_no_model, another_shape),
    ],
)
def test_files_that_do_not_fit(folder: Path, spoil: Callable[[Path], str]) -> None:
    message = spoil(folder)
    assert message in refused(folder)


def test_buffers_of_another_dtype_do_not_count(folder: Path) -> None:
    """Folders of older releases have the rotation's frequencies, in float32 beside weights of 16 bits."""
    for path in folder.glob("*.safetensors"):
        save_file({name: tensor.half() for name, tensor in load_file(path).items()}, path)
    save_file({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}, folder / "old.safetensors")
    places = json.loads((folder / INDEX).read_text())["weight_map"]
    edit(folder / INDEX, weight_map=places | {"model.layers.0.self_attn.rotary_emb.inv_freq": "old.safetensors"})
    assert Tensors(folder).dtype == "fp16"


def test_places_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    assert refused(tmp_path / "absent").startswith(f"{tmp_path / 'absent'}: no such folder")
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "empty").startswith(f"{tmp_path / 'empty' / 'config.json'} is missing")
    (folder / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        import_folder(folder, folder)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"config": {}, "corpora": []}')
    with pytest.raises(ConfigError, match="this is the folder of a run, which needs no import"):
        import_folder(tmp_path / "run", tmp_path / "other")


@pytest.mark.proof
def test_a_refusal_is_one_line_and_exit_code_2(folder: Path, tmp_path: Path) -> None:
    edit(folder / "config.json", hidden_act="gelu")
    done = efficientbench("import", str(folder), "--output", str(tmp_path / "run"), expect=2)
    assert done.stderr.startswith(
        f"error: {folder / 'config.json'}: no model here computes what this one does: hidden_"
    )
    assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)
