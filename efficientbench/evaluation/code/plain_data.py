"""Exchange plain data with a process that is not trusted: numbers, text, bytes, None, tuples, lists, sets and dicts.

A message is JSON: a value, and its lists, sets and dicts, each once, so that both sides refer to them by their index.
Unpacked data has exactly these types, whatever the other side sends. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
from collections import Counter, OrderedDict, defaultdict
from itertools import chain
from typing import Any

MESSAGE_BYTES = 16 * 2**20
"""The length of the longest message."""

_PACK: dict[type, Any] = {
    type(None): lambda value: 0,
    bool: int,
    # Python limits the decimal digits of an integer, but not the hexadecimal ones.
    int: hex,
    float: float.hex,
    complex: lambda value: [value.real.hex(), value.imag.hex()],
    str: str,
    bytes: bytes.hex,
}
_UNPACK: dict[str, Any] = {
    "NoneType": lambda content: None,
    "bool": bool,
    "int": lambda content: int(content, 16),
    "float": float.fromhex,
    "complex": lambda content: complex(*map(float.fromhex, content)),
    "str": str,
    "bytes": bytes.fromhex,
}
_FIXED: dict[str, Any] = {"tuple": tuple, "frozenset": frozenset}
_CHANGING: dict[str, Any] = {"list": list, "set": set, "dict": dict}
_DICTS = (Counter, OrderedDict, defaultdict)
"""Types of the standard library that arrive as dicts."""


def pack(value: Any, objects: list[Any]) -> dict[str, Any]:
    """Return the message of a value.

    Args:
        value: plain data; instances of subclasses are not plain data, except for `_DICTS`.
        objects: the lists, sets and dicts that both sides know, in the same order; the value's new ones are appended.

    Raises:
        TypeError: the value contains something other than plain data.
    """
    places = {id(each): place for place, each in enumerate(objects)}

    def packed(one: Any) -> list[Any]:
        kind = dict if type(one) in _DICTS else type(one)
        if kind in _PACK:
            return [kind.__name__, _PACK[kind](one)]
        if kind in _FIXED.values():
            return [kind.__name__, [packed(each) for each in one]]
        if kind not in _CHANGING.values():
            raise TypeError(f"{kind.__name__} is no plain data, such as numbers, text, lists and dicts")
        if id(one) not in places:
            places[id(one)] = len(objects)
            objects.append(one)
        return ["at", places[id(one)]]

    message: dict[str, Any] = {"value": packed(value), "objects": []}
    # `objects` grows during the loop.
    for each in objects:
        items = chain.from_iterable(each.items()) if isinstance(each, dict) else each
        kind = "dict" if isinstance(each, dict) else type(each).__name__
        message["objects"].append([kind, [packed(item) for item in items]])
    return message


def unpack(message: dict[str, Any], objects: list[Any], sent: dict[str, Any] | None = None) -> Any:
    """Return the value of a message.

    Args:
        message: a message of `pack`, or anything that the other side sent.
        objects: the lists, sets and dicts that both sides know, which get their contents from the message; new ones
            are appended.
        sent: the message with which `objects` were sent; objects that have not changed since are not touched.

    Raises:
        Exception: `message` is not a valid message; any type of exception.
    """
    known = len(objects)
    objects += [_CHANGING[kind]() for kind, _ in message["objects"][known:]]

    def unpacked(one: list[Any]) -> Any:
        kind, content = one
        if kind == "at":
            return objects[content]
        if kind in _FIXED:
            return _FIXED[kind](map(unpacked, content))
        return _UNPACK[kind](content)

    for place, (own, entry) in enumerate(zip(objects, message["objects"], strict=True)):
        if sent is not None and place < known and entry == sent["objects"][place]:
            continue
        items = [unpacked(each) for each in entry[1]]
        own.clear()
        if isinstance(own, dict):
            # `Counter.update` would count the pairs.
            for key, value in zip(items[::2], items[1::2], strict=True):
                own[key] = value
        elif isinstance(own, set):
            own.update(items)
        else:
            own.extend(items)
    return unpacked(message["value"])


def send(file: int, message: dict[str, Any]) -> None:
    """Write a message to a pipe.

    Raises:
        ValueError: the message is too long.
        OSError: the other side has closed the pipe.
    """
    content = json.dumps(message).encode()
    if len(content) > MESSAGE_BYTES:
        raise ValueError(f"data of more than {MESSAGE_BYTES // 2**20} MiB")
    rest = memoryview(len(content).to_bytes(4, "big") + content)
    while rest:
        rest = rest[os.write(file, rest) :]


def receive(file: int) -> dict[str, Any]:
    """Read a message from a pipe.

    Raises:
        EOFError: the other side has ended.
        ValueError: the bytes are not a message.
    """
    size = int.from_bytes(_read(file, 4), "big")
    if size > MESSAGE_BYTES:
        raise ValueError("it is no message")
    message = json.loads(_read(file, size))
    if not isinstance(message, dict):
        raise ValueError("it is no message")
    return message


def _read(file: int, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        part = os.read(file, size - len(content))
        if not part:
            raise EOFError
        content += part
    return bytes(content)
