"""Check that `AutoTokenizer`, called on an exported folder, returns the ids that the run was trained on."""

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
    """Return whether `AutoTokenizer` loads this tokenizer unchanged beside a configuration of Qwen2.

    Beside one, `AutoTokenizer` of transformers 5 reads only vocabulary and merges from the folder. It uses Qwen2's own
    normalization and split, whatever tokenizer.json has, and the ids differ without a warning.
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
    """Return the parts of the tokenizer that `AutoTokenizer` of the installed transformers changes as it loads it."""
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    found = json.loads(loaded.backend_tokenizer.to_str())
    return [part for part in DECIDING if _essence(found[part]) != _essence(tokenizer.spec[part])]


def _essence(part: Any) -> Any:
    """Return a part without what decides no id: empty values, which mean the same as absent ones, and offsets."""
    if isinstance(part, dict):
        return {
            key: _essence(value) for key, value in part.items() if value not in (None, "") and key != "trim_offsets"
        }
    return [_essence(each) for each in part] if isinstance(part, list) else part
