"""Read what nanochat itself saves (`model_*.pt`, `meta_*.json`, its tokenizer) as transformers would have saved it.

Nothing of the files runs: torch reads tensors alone, and the tokenizer's pickle is read as plain data.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from efficientbench.basics.errors import ConfigError, first_line
from efficientbench.basics.foreign import check_regular, parse_json, read_whole
from efficientbench.data_tools.tokenizer.tiktoken_file import Encoding, read_encoding, tokenizer_of
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.export.safetensors_folder import DTYPES

KEYS = {
    "sequence_len": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_kv_head": "num_key_value_heads",
    "n_embd": "hidden_size",
}
"""transformers' names of the keys in `model_config`."""
FIXED = {
    **{"model_type": "nanochat", "rope_theta": 10000.0, "final_logit_softcapping": 15.0},
    # That of torch's rms_norm in float32.
    "rms_norm_eps": 1.1920929e-07,
}
"""What nanochat's code of 2025 has without a key."""
NAMES = {
    r"transformer\.wte\.weight": "model.embed_tokens.weight",
    r"lm_head\.weight": "lm_head.weight",
    r"transformer\.h\.(\d+)\.attn\.c_([qkv])\.weight": r"model.layers.\1.self_attn.\2_proj.weight",
    r"transformer\.h\.(\d+)\.attn\.c_proj\.weight": r"model.layers.\1.self_attn.o_proj.weight",
    r"transformer\.h\.(\d+)\.mlp\.c_fc\.weight": r"model.layers.\1.mlp.fc1.weight",
    r"transformer\.h\.(\d+)\.mlp\.c_proj\.weight": r"model.layers.\1.mlp.fc2.weight",
}
"""transformers' names of the tensors, by patterns of nanochat's."""
OTHER_MODEL = "no model here computes with it: nanochat's models of 2025, as in transformers, would be right"


class NanochatFolder:
    """A folder of nanochat's, at its newest step."""

    def __init__(self, folder: Path) -> None:
        """`folder`: has `model_*.pt`."""
        self.folder = folder
        self.model = max(folder.glob("model_*.pt"), key=lambda path: (len(path.stem), path.stem))
        self.meta = folder / f"{self.model.stem.replace('model', 'meta', 1)}.json"

    @staticmethod
    def is_one(folder: Path) -> bool:
        """Return whether nanochat wrote the folder's weights."""
        return not (folder / "config.json").exists() and any(folder.glob("model_*.pt"))

    def config(self) -> dict[str, Any]:
        """Return the model's configuration by transformers' keys.

        Raises:
            OSError: the file cannot be read.
            ConfigError: it is damaged, or has a key of another model.
        """
        try:
            given = parse_json(read_whole(self.meta))["model_config"]
            config = {name: given[key] for key, name in KEYS.items()}
            width = 4 * int(given["n_embd"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{self.meta}: damaged, its model_config lacks {', '.join(KEYS)} ({error})") from None
        for key, value in given.items():
            # "L" is attention to the whole context, in every layer.
            if key not in KEYS and (key, value) != ("window_pattern", "L"):
                raise ConfigError(f"{self.meta}: {key} is {value!r}, and {OTHER_MODEL}")
        return {**FIXED, **config, "intermediate_size": width}

    def tensors(self) -> tuple[dict[str, torch.Tensor], str]:
        """Return the weights by transformers' names, and their dtype by our name.

        nanochat keeps the embedding in bf16 beside matrices in fp32: all become fp32 then, which changes no value.

        Raises:
            OSError: the file cannot be read.
            ConfigError: it is damaged, holds anything but tensors, or tensors of another model.
        """
        content, tensors = _read_plain(self.model, mmap=True), {}
        if not isinstance(content, dict):
            raise ConfigError(f"{self.model}: it holds no tensors by name")
        for name, tensor in content.items():
            # torch.compile puts this before each name.
            short = str(name).removeprefix("_orig_mod.")
            found = next((pattern for pattern in NAMES if re.fullmatch(pattern, short)), None)
            if found is None or not isinstance(tensor, torch.Tensor):
                raise ConfigError(f"{self.model}: it has {short}, and {OTHER_MODEL}")
            tensors[re.sub(found, NAMES[found], short)] = tensor.detach()
        dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
        known = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
        if not tensors or not dtypes <= known.keys():
            raise ConfigError(f"{self.model}: weights here are {', '.join(DTYPES)}, and it has {sorted(dtypes)}")
        if len(dtypes) == 1:
            return tensors, known[dtypes.pop()]
        return {name: tensor.float() for name, tensor in tensors.items()}, "fp32"

    def tokenizer(self) -> TextTokenizer:
        """Return the tokenizer that lies beside the model, or in nanochat's own folder of it.

        Raises:
            OSError: a file cannot be read.
            ConfigError, DataError: the file is missing, damaged, holds anything but an encoding, or does not fit
                `token_bytes.pt`.
        """
        places = (self.folder, self.folder.resolve().parent.parent / "tokenizer")
        path = next((place / "tokenizer.pkl" for place in places if (place / "tokenizer.pkl").is_file()), None)
        if path is None:
            raise ConfigError(f"{places[0] / 'tokenizer.pkl'} is missing, and {places[1]} has none")
        encoding = read_encoding(path)
        if (path.parent / "token_bytes.pt").exists():
            _check_lengths(path.parent / "token_bytes.pt", encoding)
        return tokenizer_of(encoding, "<|bos|>", path)


def _check_lengths(path: Path, encoding: Encoding) -> None:
    """Compare nanochat's length of each token in bytes with the tokenizer. Raises ConfigError where they differ."""
    given = _read_plain(path)
    lengths = given.tolist() if isinstance(given, torch.Tensor) else None
    if not isinstance(lengths, list) or len(lengths) != len(encoding.ranks) + len(encoding.special):
        raise ConfigError(f"{path}: it is not one length for each token of tokenizer.pkl")
    for token, index in encoding.ranks.items():
        # nanochat of 2025 took the length of the decoded text, where bytes that are no character count as U+FFFD.
        if lengths[index] not in (len(token), len(token.decode(errors="replace").encode())):
            raise ConfigError(
                f"{path}: token {index} has {lengths[index]} bytes, and {len(token)} in tokenizer.pkl: they are not of "
                "one tokenizer"
            )


def _read_plain(path: Path, mmap: bool = False) -> Any:
    """Return the content of a file of torch.save's that holds only tensors, numbers and texts.

    Raises:
        OSError: the file is missing, or no regular one.
        ConfigError: it is damaged, or holds anything else.
    """
    check_regular(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # a damaged pickle may raise anything
        raise ConfigError(f"{path}: refused, damaged or no plain data ({first_line(error)})") from None
