"""Read a config.json as the shapes of its decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from efficientbench.basics.errors import ConfigError, nearest
from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.planning.foreign.decoder import DecoderShape
from efficientbench.planning.foreign.dense import DENSE, Reader
from efficientbench.planning.foreign.experts import EXPERTS
from efficientbench.planning.foreign.keys import Keys
from efficientbench.planning.foreign.recurrent import RECURRENT

NAME = "config.json"
READERS: dict[str, Reader] = dict(sorted({**DENSE, **EXPERTS, **RECURRENT}.items()))
"""The reader of each model type that is counted."""


def is_configuration(word: str) -> bool:
    """Return whether a word of the command line names a config.json or a folder that has one."""
    path = Path(word)
    try:
        return path.suffix == ".json" or (path.is_dir() and (path / NAME).exists())
    except (OSError, ValueError):
        return False


def shape_of_file(given: Path) -> DecoderShape:
    """Return the shapes that a config.json describes; `given`: its path or its folder's.

    Raises ConfigError: the file cannot be read, its class has no reader, or a key is not counted.
    """
    path = given / NAME if given.is_dir() else given
    try:
        content = parse_json(read_whole(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: is no configuration of a model")
    if "model_type" not in content and {"config", "corpora"} <= content.keys():
        raise ConfigError(f"{path}: this is the folder of a run: plan it by its name")
    return shape_of(str(path), content)


def shape_of(where: str, content: Mapping[str, Any]) -> DecoderShape:
    """Return the shapes that transformers' keys describe; `where`: their place, for messages. Raises ConfigError."""
    inner = content.get("text_config")
    if isinstance(inner, dict) and inner.get("model_type") in READERS:
        tied = {key: content[key] for key in ("tie_word_embeddings",) if key in content}
        shape = shape_of(f"{where}: text_config", {**inner, **tied})
        note = f"text_config of {content.get('model_type')} alone: what reads images or sound is left out"
        return replace(shape, notes=(*shape.notes, note))
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in READERS:
        near = nearest(kind, READERS) if isinstance(kind, str) else None
        hint = f"; did you mean {near}?" if near else ""
        raise ConfigError(
            f"{where}: model_type is {kind!r:.100}, of which no reader counts the shapes{hint}; those that are "
            f"counted: {', '.join(READERS)}"
        )
    keys = Keys(where, content)
    try:
        shape = READERS[kind](keys)
        keys.finish()
    except (TypeError, AttributeError, OverflowError) as error:
        raise ConfigError(f"{where}: a key has a value of another kind than {kind} has ({error})") from None
    quantized = ("stored quantized: counted in bfloat16",) if content.get("quantization_config") else ()
    own_code = ("auto_map: code of its own may differ from transformers' class",) if content.get("auto_map") else ()
    return replace(shape, notes=(*shape.notes, *quantized, *own_code))
