"""Conversations: messages of a system, a user and an assistant; the assistant may call a tool between texts."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from efficientbench.data_tools.rows import RowError

SYSTEM, USER, ASSISTANT = ROLES = ("system", "user", "assistant")
TEXT, CALL, RESULT = PART_KINDS = ("text", "python", "python_output")
"""Kinds of parts: text, an expression that the assistant sends to the tool, and the result that the tool returns."""
LEARNED = (TEXT, CALL)
"""Kinds of parts that the assistant writes itself, and learns; the tool's results stay outside of the mask."""

_MESSAGE_KEYS = ("role", "content", "loss_weight")
_SAME_KEYS = {"from": "role", "value": "content", "weight": "loss_weight"}
"""ShareGPT's and OpenAI's names of these keys."""
_SHAREGPT_ROLES = (SYSTEM, "human", "gpt")
_SAME_ROLES = {"human": USER, "gpt": ASSISTANT, "developer": SYSTEM}


@dataclass(frozen=True)
class Part:
    """One part of a message."""

    kind: str
    """One of `PART_KINDS`."""
    text: str


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: str
    """One of `ROLES`."""
    parts: tuple[Part, ...]
    """The message's parts: text alone from the system and the user; from the assistant, a result follows each call."""
    supervised: bool = True
    """Whether the assistant's own words are supervised: whether they count in the training loss."""

    @property
    def text(self) -> str:
        """The text of all parts of kind `TEXT`."""
        return "".join(part.text for part in self.parts if part.kind == TEXT)


def messages_key(row: Mapping[str, Any]) -> str:
    """Return the key under which a row has its messages: ShareGPT's rows have `conversations`."""
    return "conversations" if row.get("messages") is None and row.get("conversations") is not None else "messages"


def with_system(row: Mapping[str, Any], messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return a row's messages after the text of its column `system`, which LLaMA-Factory's rows may have.

    Raises:
        RowError: the column is no text, or the messages begin with another system message.
    """
    system = row.get("system")
    if not system:
        return messages
    if not isinstance(system, str):
        raise RowError(f"system: a text is needed, it is: {_shown(system)}")
    if messages[0].role != SYSTEM:
        return (Message(SYSTEM, (Part(TEXT, _checked_text(system, "system")),)), *messages)
    if messages[0].text != system:
        raise RowError("system: the messages begin with another system message; leave one of them out")
    return messages


def check_no_history(row: Mapping[str, Any], key: str) -> None:
    """Raise a RowError if a row has LLaMA-Factory's `history` beside `key`, which has earlier messages itself."""
    if row.get("history"):
        raise RowError(f"history: it is read beside instruction and output alone; {key} has the earlier messages")


def check_no_tools(row: Mapping[str, Any]) -> None:
    """Raise a RowError if a row has LLaMA-Factory's `tools`: what it says of them would be lost."""
    # Its rows have them as JSON.
    if (row.get("tools") or "[]") != "[]":
        raise RowError("tools: descriptions of tools are not read; put them into system, or leave the column out")


def read_messages(value: Any, key: str = "messages") -> tuple[Message, ...]:
    """Parse and check the messages of a complete conversation, as JSON has them; errors name the row's `key`.

    A message is `{"role": …, "content": …}`, or ShareGPT's `{"from": …, "value": …}`; the content is a text, or a list
    of parts `{"type": …, "text": …}`. The key of a part's text may also be `value`. An assistant's message with
    `loss_weight` (or `weight`) 0 is not supervised.

    Raises:
        RowError: the roles do not alternate from the user (after an optional system message) to the assistant; a
            message is empty; a part has an unknown kind; a call has no result; no message is supervised.
    """
    messages = parse_messages(value, key)
    _check_order(messages, (ASSISTANT,), key)
    check_learned(messages, key)
    return messages


def read_prompt(value: Any) -> tuple[Message, ...]:
    """Parse and check the `messages` of a prompt: as `read_messages` does, but the last message may be the user's.

    If it is the assistant's, its answer continues it. An assistant's message may be empty: a model may end its answer
    at once. Messages of the user, or the system, may follow each other; see `joined`.

    Raises:
        RowError: see `read_messages`.
    """
    messages = parse_messages(value, "messages", (ASSISTANT,))
    _check_order(messages, (USER, ASSISTANT), "messages", may_repeat=(SYSTEM, USER))
    return messages


def joined(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages with those of one role that follow each other as one, with an empty line between their texts."""
    groups = [list(group) for _, group in itertools.groupby(messages, lambda message: message.role)]
    between = (Part(TEXT, "\n\n"),)
    return tuple(
        replace(group[0], parts=sum(((*between, *each.parts) for each in group[1:]), group[0].parts))
        for group in groups
    )


def parse_messages(value: Any, key: str, may_be_empty: Collection[str] = ()) -> tuple[Message, ...]:
    """Parse and check each of a row's messages, see `read_messages`; their order is not checked.

    Args:
        value: the messages.
        key: the row's key that has them.
        may_be_empty: roles whose messages may be empty.

    Raises:
        RowError: a message cannot be used.
    """
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise RowError(f"{key}: a list of messages is needed, it is: {_shown(value)}")
    return tuple(_message(each, f"{key}[{number}]", may_be_empty) for number, each in enumerate(value))


def check_learned(messages: Sequence[Message], key: str) -> None:
    """Raise a RowError if no message is supervised."""
    if not any(message.supervised for message in messages if message.role == ASSISTANT):
        raise RowError(f"{key}: every message of the assistant has loss_weight 0: there is nothing to learn")


def _message(value: Any, place: str, may_be_empty: Collection[str]) -> Message:
    if not isinstance(value, Mapping):
        raise RowError(f"{place}: an object with role and content is needed, it is: {_shown(value)}")
    # Parquet has every key in every row, with null or an empty list for a missing value.
    keys = {_SAME_KEYS.get(key, key): key for key, each in value.items() if each is not None}
    if unknown := [key for own, key in keys.items() if own not in _MESSAGE_KEYS and value[key] != []]:
        raise RowError(f"{place}.{unknown[0]}: unknown key; a message has {', '.join(_MESSAGE_KEYS)}")
    role_key, content_key, weight_key = (keys.get(own, own) for own in _MESSAGE_KEYS)
    role, content, weight = (value.get(key) for key in (role_key, content_key, weight_key))
    role = _SAME_ROLES.get(role, role) if isinstance(role, str) else role
    if role not in ROLES:
        names = _SHAREGPT_ROLES if role_key == "from" else ROLES
        raise RowError(f"{place}.{role_key}: {_shown(role)} is none of {', '.join(names)}{_nearest(role, names)}")
    parts = tuple(_parts(content, f"{place}.{content_key}"))
    if not any(part.text.strip() for part in parts) and role not in may_be_empty:
        raise RowError(f"{place}.{content_key}: the message is empty")
    if role != ASSISTANT and any(part.kind != TEXT for part in parts):
        raise RowError(f"{place}.{content_key}: only the assistant calls tools, not the {role}")
    _check_calls(parts, f"{place}.{content_key}")
    if weight is not None and weight not in (0, 1):
        raise RowError(f"{place}.{weight_key}: 0 (not learned) or 1 is needed, it is: {_shown(weight)}")
    if weight == 1 and role != ASSISTANT:
        raise RowError(f"{place}.{weight_key}: only the assistant's messages are learned, the {role}'s have 0")
    return Message(role, parts, weight != 0)


def _parts(content: Any, place: str) -> Iterator[Part]:
    if isinstance(content, str):
        yield Part(TEXT, _checked_text(content, place))
        return
    if not isinstance(content, Sequence):
        raise RowError(f"{place}: a text or a list of parts is needed, it is: {_shown(content)}")
    for number, each in enumerate(content):
        here = f"{place}[{number}]"
        if not isinstance(each, Mapping):
            raise RowError(f"{here}: an object with type and text is needed, it is: {_shown(each)}")
        kind = each.get("type")
        if kind not in PART_KINDS:
            raise RowError(
                f"{here}.type: {_shown(kind)} is none of {', '.join(PART_KINDS)}{_nearest(kind, PART_KINDS)}"
            )
        key = "value" if "value" in each else "text"
        text = each.get(key)
        if not isinstance(text, str) or not text:
            raise RowError(f"{here}.{key}: a text that is not empty is needed, it is: {_shown(text)}")
        yield Part(kind, _checked_text(text, f"{here}.{key}"))


def _checked_text(text: str, place: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            lone = text[error.start]
            raise RowError(f"{place}: half of a surrogate pair ({lone!r}) stands alone: it is no character") from None
    return text


def _check_calls(parts: Sequence[Part], place: str) -> None:
    """Raise a RowError unless a result follows each call, and a call precedes each result."""
    for number, part in enumerate(parts):
        after = parts[number + 1].kind if number + 1 < len(parts) else None
        before = parts[number - 1].kind if number else None
        if part.kind == CALL and after != RESULT:
            raise RowError(f"{place}[{number}]: a {CALL} part needs its {RESULT} right after it")
        if part.kind == RESULT and before != CALL:
            raise RowError(f"{place}[{number}]: a {RESULT} part needs its {CALL} part right before it")


def _check_order(messages: Sequence[Message], last: Sequence[str], key: str, may_repeat: Collection[str] = ()) -> None:
    before, wanted = SYSTEM, USER
    for number, message in enumerate(messages):
        is_first_system = number == 0 and message.role == SYSTEM
        repeats = number > 0 and message.role == before and before in may_repeat
        if message.role != wanted and not is_first_system and not repeats:
            raise RowError(
                f"{key}[{number}].role: it is {message.role!r}, and must be {wanted!r}: after a system "
                "message, if there is one, user and assistant alternate"
            )
        before, wanted = message.role, ASSISTANT if message.role == USER else USER
    if before not in last:
        what = "what is to be answered" if USER in last else "a conversation"
        raise RowError(f"{key}[{len(messages) - 1}].role: {what} ends with the {last[0]}, this one with the {before}")


def _shown(value: Any) -> str:
    """Return a value as an error message shows it: cut after 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]} …"


def _nearest(value: Any, known: Sequence[str]) -> str:
    found = get_close_matches(value, known, 1) if isinstance(value, str) else []
    return f"; did you mean {found[0]}?" if found else ""
