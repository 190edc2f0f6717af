"""Pickles as Python 3.11.2 writes them, whatever Python runs; `torch.save` takes this module as its `pickle_module`."""

from __future__ import annotations

import enum
import io
import pickle
from typing import Any


class Pickler(pickle.Pickler):
    """Writes members of enums as `getattr(Enum, name)`."""

    def reducer_override(self, value: Any) -> Any:
        return (getattr, (type(value), value.name)) if isinstance(value, enum.Enum) else NotImplemented


def dumps(value: object) -> bytes:
    """The bytes that `pickle.dumps` of Python 3.11.2 returns."""
    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()
