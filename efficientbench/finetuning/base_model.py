"""Find the base model of a fine-tuning: in a folder, on the hub, on ModelScope, or a tiny Qwen2 made on the spot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.basics.files import complete_folder, exclusive_lock
from efficientbench.basics.foreign import MOST_LAYERS, WEIGHTS, check_folder, json_object
from efficientbench.data_tools.download.hub_names import is_of_modelscope
from efficientbench.data_tools.download.model_files import fetch_from_hub
from efficientbench.finetuning.config import TINY, TINY_SHAPE
from efficientbench.finetuning.examples.encoding import CHATML
from efficientbench.finetuning.examples.rows import Row, read_rows
from efficientbench.training.checkpoints.manifest import verify_where_listed

SEED = 1234
_SMALL_FILES = (
    *("config*.json", "generation_config.json", "adapter_config.json", "*.index.json"),
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model"),
    *("chat_template.*", "additional_chat_templates/*.jinja", "processor_config.json", "preprocessor_config.json"),
)
"""What transformers opens beside the weights: configuration, index of the weights, tokenizer and chat template."""
_FILES = (*_SMALL_FILES, f"*{WEIGHTS}")
"""A model's files; no pickle and no code."""
_OF_HUB = (*_SMALL_FILES, f"model*{WEIGHTS}")
"""The files that the hub is asked for: it may hold the weights a second time, in another format or by checkpoint."""
_PICKLES = "pytorch_model*.bin"
"""The weights of a model that has no .safetensors; transformers reads them as plain data."""


def find_model(model: str, cache: Path) -> str:
    """Return the folder or hub id from which transformers loads a model; download or make it if it is missing.

    Raises:
        ConfigError: there is no such model.
        CheckpointError: the model's manifest lists a file that is damaged.
    """
    if model == TINY:
        folder = cache.absolute() / "tiny_qwen2"
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Nodes that share the folder may arrive at the same time.
        with exclusive_lock(folder.with_suffix(".lock")):
            if not folder.is_dir():
                make_tiny(folder)
        return str(folder)
    if is_of_modelscope(model):
        model = str(_of_modelscope(model))
    is_folder = Path(model).is_dir()
    folder = Path(model).absolute() if is_folder else _of_hub(model)
    check_base(str(folder))
    verify_where_listed(folder)
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(folder)
    except Exception as error:  # a foreign folder may raise anything
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"model: {model} is neither a folder with a model nor one that the hub gives: {first}"
        ) from None
    return str(folder) if is_folder else model


def check_base(model: str) -> None:
    """Check the files of a model's folder before transformers opens them; a hub id has no files to check.

    Raises ConfigError: a file cannot be read, is a device or a pipe, or is too large.
    """
    if not Path(model).is_dir():
        return
    try:
        check_folder(Path(model), _FILES)
    except OSError as error:
        raise ConfigError(f"model: {error.filename or model}: cannot be read ({error.strerror})") from None
    path = Path(model) / "config.json"
    # What else is wrong in it, transformers says.
    _check_layers(path, json_object(path))


def _check_layers(path: Path, content: Mapping[str, Any]) -> None:
    """Raise ConfigError where a configuration has more layers than any model."""
    # Models of several parts have a configuration within it for each.
    parts = [content, *content.values()]
    for key, value in (item for part in parts if isinstance(part, dict) for item in part.items()):
        if "layer" in key and isinstance(value, int) and value > MOST_LAYERS:
            raise ConfigError(f"model: {path}: {key} is {value}, and at most {MOST_LAYERS} would be right")


def _of_hub(model: str) -> Path:
    """Return the folder of a hub's model in the hub's cache; download it if it is missing. Raises ConfigError."""
    # Here, where no launcher takes a long download for a hang, and not on the ranks.
    folder = _fetch(model, _OF_HUB)
    return folder if any(folder.glob(f"model*{WEIGHTS}")) else _fetch(model, (*_OF_HUB, _PICKLES))


def _fetch(model: str, patterns: Sequence[str]) -> Path:
    try:
        return fetch_from_hub(model, patterns)
    except DataError as error:
        raise ConfigError(f"model: {error}") from None


def _of_modelscope(model: str) -> Path:
    """Return the local folder of a ModelScope model; download it if it is missing. Raises ConfigError."""
    folder = _fetch(model, _FILES)
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"model: {model} has no weights in .safetensors files, which alone are taken")
    return folder


def load_tokenizer(model: str) -> Any:
    """Return the model's tokenizer, with a chat template and a padding token.

    Raises ConfigError: the model has no tokenizer.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except Exception as error:  # a foreign folder may raise anything
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"model: {model} has no tokenizer: {first}") from None
    if not tokenizer.chat_template:
        tokenizer.chat_template = CHATML
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def make_tiny(folder: Path) -> None:
    """Write a Qwen2 with random weights, and a tokenizer trained on Python's manual."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, logging

    logging.disable_progress_bar()
    tokenizer = _train_tokenizer(read_rows(None, "difficulty", ("one",)))
    shape = {key: value for key, value in TINY_SHAPE.items() if key != "model_type"}
    config = Qwen2Config(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, **shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = Qwen2ForCausalLM(config)
    with complete_folder(folder) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)


def _train_tokenizer(rows: Sequence[Row]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY_SHAPE["vocab_size"],
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator((message["content"] for row in rows for message in row.messages), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=trained, eos_token=special[2], pad_token=special[0], chat_template=CHATML
    )
