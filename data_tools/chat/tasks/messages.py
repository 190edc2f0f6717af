"""Conversations as they are: any file with `messages` in each row."""

from __future__ import annotations

from efficientbench.data_tools.chat.conversations import read_messages
from efficientbench.data_tools.chat.rows import Row
from efficientbench.data_tools.chat.task import Example, Task


class Messages(Task):
    """Rows with `messages`; other keys are of no meaning."""

    def example(self, row: Row) -> Example:
        return Example(read_messages(row.get("messages")))
