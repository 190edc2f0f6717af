"""Names a run whose keys gave it other attention or positions than the variant has that its name says.

`run gqa_1.5B model.attention.kind=mla` writes a record of the variant gqa. Its row is no row of gqa: it is called
`gqa_1.5B (with mla)`, and its variant `gqa (with mla)`, so that no report takes it for the baseline. A window, sinks or
a gate makes another kind of a layer too: `gqa_1.5B (with gqa window 512)`. `layers.yaml` has the kinds of each of our
variants, which docs/generate.py writes from the matrices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from efficientbench.basics.foreign import parse_own_yaml
from efficientbench.metrics.records.figures import WITH, Subject

LAYERS: Mapping[str, tuple[str, str]] = {
    variant: (kinds[0], kinds[1])
    for variant, kinds in parse_own_yaml(Path(__file__).with_name("layers.yaml").read_text(encoding="utf-8")).items()
}
"""Variant of ours → the kinds of its attention and of its positions, as `layers_of` returns them."""

AnySubject = TypeVar("AnySubject", bound=Subject)


def named_by_layers(record: AnySubject, config: Mapping[str, Any]) -> AnySubject:
    """Return the record, renamed where its configuration has other kinds of layers than the variant of its name."""
    if record.variant not in LAYERS:
        return record
    (found, positions), usual = layers_of(config), LAYERS[record.variant]
    attention = _chosen(found)
    # A smaller model has a narrower window, and is of the same variant.
    alike = _without_widths(attention) == _without_widths(_chosen(usual[0]))
    changed = [attention] if attention and not alike else []
    changed += [f"{'no' if positions == 'none' else positions} positions"] if positions not in ("", usual[1]) else []
    if not changed:
        return record
    # No comma, which would divide the name in `--only`.
    other = f"{WITH}{' + '.join(changed)})"
    return record.model_copy(update={"run": record.run + other, "variant": record.variant + other})


def layers_of(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kinds of attention and of positions of a configuration's layers; each empty where none is named.

    Attention's have what a layer sees and computes beyond its kind, like `gqa window 512 sinks/gqa`.
    """
    return _kinds(config, "attention"), _kinds(config, "position")


_MARKS = ("window", "sinks", "gate")
"""Keys of attention that change what a layer sees or computes."""


def _kinds(config: Mapping[str, Any], part: str) -> str:
    own, first, pattern = (_at(config, "model", *keys) for keys in ((part,), ("first",), ("pattern",)))
    own = own if isinstance(own, dict) else {}
    names = [*(first if isinstance(first, list) else []), *(pattern if isinstance(pattern, list) else ["own"])]
    layers = []
    for name in names:
        keys = _at(config, "model", "kinds", str(name), part)
        keys = keys if isinstance(keys, dict) else {}
        # Within a section the same kind adds keys, another kind replaces the section.
        layers.append({**own, **keys} if keys.get("kind", own.get("kind")) == own.get("kind") else keys)
    return "/".join(dict.fromkeys(_told(keys) for keys in layers if keys.get("kind")))


def _told(keys: Mapping[str, Any]) -> str:
    marks = [mark if keys[mark] is True else f"{mark} {keys[mark]}" for mark in _MARKS if keys.get(mark)]
    return " ".join([str(keys["kind"]), *marks])


def _chosen(kinds: str) -> str:
    """Leave out what each layer of a kind has, as the variant of the kind's name shows: a window that is no choice."""
    layers = ((layer.partition(" ")[0], layer) for layer in kinds.split("/"))
    own = ((kind, layer, LAYERS.get(kind, ("", ""))[0]) for kind, layer in layers)
    return "/".join(
        kind if _without_widths(layer) == _without_widths(of_kind) else layer for kind, layer, of_kind in own
    )


def _without_widths(kinds: str) -> str:
    return re.sub(r"(?<= window) \d+", "", kinds)


def _at(tree: Any, *keys: str) -> Any:
    """Return what lies at a path; None where the tree, which another tool may have written, has no such part."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree
