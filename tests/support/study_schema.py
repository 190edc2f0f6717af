"""The published schema of `study.json`, against which what a study wrote is checked."""

from __future__ import annotations

import json

from support.repository import ROOT


def check_study(content: object) -> None:
    """Check what a `study.json` holds against docs/study.schema.json."""
    schema = json.loads((ROOT / "docs" / "study.schema.json").read_text(encoding="utf-8"))
    _check(content, schema, schema["$defs"])


def _check(content: object, schema: dict, named: dict) -> None:
    """Check the keys of each mapping, and the type of each value, against a schema as pydantic writes it."""
    if "$ref" in schema:
        schema = named[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        failures = []
        for choice in schema["anyOf"]:
            try:
                _check(content, choice, named)
                return
            except AssertionError as error:
                failures.append(error)
        raise AssertionError(failures)
    kinds: dict[str, type | tuple[type, ...]] = {
        "object": dict,
        "array": list,
        "string": str,
        "number": (int, float),
        "integer": int,
        "boolean": bool,
        "null": type(None),
    }
    kind = str(schema.get("type", "object" if "properties" in schema else ""))
    assert kind == "" or isinstance(content, kinds[kind]), (content, schema)
    if isinstance(content, dict) and "properties" in schema:
        assert set(schema.get("required", ())) <= content.keys() <= schema["properties"].keys()
        for key, value in content.items():
            _check(value, schema["properties"][key], named)
    elif isinstance(content, dict) and isinstance(schema.get("additionalProperties"), dict):
        for value in content.values():
            _check(value, schema["additionalProperties"], named)
    elif isinstance(content, list) and "items" in schema:
        for value in content:
            _check(value, schema["items"], named)
