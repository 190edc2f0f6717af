"""Members of enums in pickles of Python 3.11.2, which alone writes them as `getattr(Enum, "name")`."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from efficientbench.basics.errors import CheckpointError


def only_members_of(*enums: type[Enum]) -> Callable[[Any, Any], Enum]:
    """Return a function that replaces `getattr` while a pickle is read, and returns only members of these enums.

    `getattr` itself would give a pickle every attribute of every object that it can name, and so any code. torch's safe
    loader takes it as `torch.serialization.safe_globals([(only_members_of(Kind), "builtins.getattr"), Kind])`.

    The function raises CheckpointError for any other attribute.
    """
    members = {(enum, name): member for enum in enums for name, member in enum.__members__.items()}

    def member_of(enum: Any, name: Any) -> Enum:
        try:
            return members[enum, name]
        except (KeyError, TypeError):  # TypeError: not hashable
            listed = ", ".join(each.__name__ for each in enums)
            raise CheckpointError(f"it asks getattr for something else than a member of {listed}") from None

    return member_of
