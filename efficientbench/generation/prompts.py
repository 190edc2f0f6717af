"""Prompts from the command line."""

from __future__ import annotations

from pathlib import Path

from efficientbench.basics.foreign import read_text
from efficientbench.config.errors import ConfigError


def read_prompts(prompt: str | None, file: Path | None) -> list[str]:
    """Return the texts to continue: `prompt`, each line of a file, or one that is empty.

    Raises ConfigError: both are given, the prompt is no text, or the file cannot be read or has no line.
    """
    if prompt is not None and file is not None:
        raise ConfigError("--prompt and --file: give one of them")
    if file is None:
        text = prompt or ""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigError("--prompt: it is no UTF-8 text") from None
        return [text]
    try:
        lines = [line for line in read_text(file).splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(f"--file: {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"--file: {file} is no UTF-8 text: {error.reason} at byte {error.start}") from None
    if not lines:
        raise ConfigError(f"--file: {file} has no prompt: write one on each line")
    return lines
