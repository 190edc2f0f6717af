"""Whether `AutoTokenizer`, which people will call on an exported folder, gives the ids that the run was trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from efficientbench.data_tools.tokenizer import TextTokenizer

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DECIDING = ("normalizer", "pre_tokenizer", "model", "decoder")
"""The parts of a tokenizer.json that decide ids and text."""


def survives_qwen2(tokenizer: TextTokenizer) -> bool:
    """Whether a tokenizer stays the same beside a configuration of Qwen2.

    There `AutoTokenizer` of transformers 5 takes only vocabulary and merges from the folder; normalization and split
    are Qwen2's own, whatever tokenizer.json says, and ids differ without a word.
    """
    spec = tokenizer.spec
    parts = (spec["pre_tokenizer"] or {}).get("pretokenizers", [])
    return (
        spec["normalizer"] == {"type": "NFC"}
        and [part["type"] for part in parts] == ["Split", "ByteLevel"]
        and parts[0]["pattern"] == {"Regex": QWEN2_SPLIT}
        and (parts[0]["behavior"], parts[0]["invert"]) == ("Isolated", False)
        and not (parts[1]["add_prefix_space"] or parts[1]["use_regex"])
        and spec["model"]["type"] == "BPE"
        and not any(
            spec["model"][key] for key in ("dropout", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges")
        )
    )


def changed_parts(tokenizer: TextTokenizer, folder: Path) -> list[str]:
    """The parts that the installed transformers' `AutoTokenizer` makes into others as it loads `folder`."""
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    found = json.loads(loaded.backend_tokenizer.to_str())
    return [part for part in DECIDING if _essence(found[part]) != _essence(tokenizer.spec[part])]


def _essence(part: Any) -> Any:
    """A part without what decides no id: where empty and absent mean the same, and offsets into the text."""
    if isinstance(part, dict):
        return {
            key: _essence(value) for key, value in part.items() if value not in (None, "") and key != "trim_offsets"
        }
    return [_essence(each) for each in part] if isinstance(part, list) else part
