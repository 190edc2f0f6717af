"""The error of the launchers."""

from __future__ import annotations


class LaunchError(RuntimeError):
    """Processes cannot be started as asked; `str()` is the whole message for the user."""
