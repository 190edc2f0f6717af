"""The files of nanochat's own, as its save_checkpoint, tok_train and tiktoken write them."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import tiktoken
import torch
from transformers import PreTrainedModel

from efficientbench.data_tools.chat.styles import CHAT_TOKENS
from efficientbench.data_tools.tokenizer.engine import choose_engine
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.export.nanochat_files import KEYS

SPLIT_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
"""nanochat's."""
MODULES = {"self_attn.o_proj": "attn.c_proj", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj", "lm_head": "lm_head"}


def encoding_of(tokenizer: TextTokenizer) -> tiktoken.Encoding:
    """Tiktoken's encoding with the merges of a byte-level tokenizer, and nanochat's pattern and special tokens."""
    ranks = choose_engine(tokenizer, Path(), []).ranks
    ordered = [*(bytes([each]) for each in range(256)), *(each for each in sorted(ranks, key=ranks.get) if each[1:])]
    return tiktoken.Encoding(
        "rustbpe",
        pat_str=SPLIT_PATTERN,
        mergeable_ranks={token: rank for rank, token in enumerate(ordered)},
        special_tokens={name: len(ordered) + number for number, name in enumerate(CHAT_TOKENS)},
    )


def nanochats(name: str) -> str:
    """Nanochat's name of one of transformers' tensors, as torch.compile gives it."""
    if name == "model.embed_tokens.weight":
        return "_orig_mod.transformer.wte.weight"
    name = re.sub(r"model\.layers\.(\d+)\.", r"transformer.h.\1.", name)
    name = re.sub(r"self_attn\.([qkv])_proj", r"attn.c_\1", name)
    for theirs, own in MODULES.items():
        name = name.replace(theirs, own)
    return f"_orig_mod.{name}"


def write(folder: Path, model: PreTrainedModel, encoding: tiktoken.Encoding) -> None:
    """Write a checkpoint of step 20 with a bf16 embedding, the tokenizer, and the lengths of its tokens."""
    folder.mkdir(parents=True)
    state = {nanochats(name): weight for name, weight in model.state_dict().items()}
    state["_orig_mod.transformer.wte.weight"] = state["_orig_mod.transformer.wte.weight"].bfloat16()
    torch.save(state, folder / "model_000020.pt")
    shapes = {own: getattr(model.config, theirs) for own, theirs in KEYS.items()}
    (folder / "meta_000020.json").write_text(json.dumps({"step": 20, "val_bpb": 1.0, "model_config": shapes}))
    (folder / "tokenizer.pkl").write_bytes(pickle.dumps(encoding))
    lengths = [len(encoding.decode_single_token_bytes(each)) for each in range(encoding.n_vocab - len(CHAT_TOKENS))]
    torch.save(torch.tensor([*lengths, *[0] * len(CHAT_TOKENS)], dtype=torch.int32), folder / "token_bytes.pt")
