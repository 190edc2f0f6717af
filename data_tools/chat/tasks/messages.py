"""Conversations from any file whose rows have `messages`, or ShareGPT's `conversations`."""

from __future__ import annotations

from efficientbench.data_tools.chat.conversations import (
    RowError,
    check_no_history,
    check_no_tools,
    messages_key,
    read_messages,
    with_system,
)
from efficientbench.data_tools.chat.task import Example, HubFiles, Task
from efficientbench.data_tools.rows import Row


class Messages(Task):
    """Reads rows with `messages` or `conversations`, and a column `system` if there is one; ignores other keys."""

    name = "messages"
    about = "conversations of your own files"

    def example(self, row: Row) -> Example:
        key = messages_key(row)
        if key not in row:
            raise RowError(f"messages: the key is missing; keys there: {', '.join(map(repr, row)) or 'none':.200}")
        check_no_history(row, key)
        check_no_tools(row)
        return Example(with_system(row, read_messages(row[key], key)))


class SmolTalk(Messages):
    """Reads SmolTalk's rows: conversations on many subjects (arXiv 2502.02737), in the edition for small models."""

    name = "smoltalk"
    about = "conversations on many subjects"
    hub = HubFiles("HuggingFaceTB/smol-smoltalk", split="train")
