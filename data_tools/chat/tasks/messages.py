"""Conversations from any file whose rows have `messages`."""

from __future__ import annotations

from efficientbench.data_tools.chat.conversations import RowError, read_messages
from efficientbench.data_tools.chat.task import Example, Task
from efficientbench.data_tools.rows import Row


class Messages(Task):
    """Reads rows with `messages`, and ignores other keys."""

    name = "messages"
    about = "conversations of your own files"

    def example(self, row: Row) -> Example:
        if "messages" not in row:
            raise RowError(f"messages: the key is missing; keys there: {', '.join(map(repr, row)) or 'none':.200}")
        return Example(read_messages(row["messages"]))
