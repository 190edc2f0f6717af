"""Text and paths in any locale: UTF-8 everywhere, and one message for names that are not UTF-8."""

from __future__ import annotations

import codecs
import io
import locale
import os
import sys
from collections.abc import Iterator
from contextlib import suppress

_UTF8_MODE = ["-X", "utf8"]
_VARIABLES = ("HOME", "TMPDIR", "XDG_CACHE_HOME")
_PREFIXES = ("EFFICIENTBENCH_", "HF_", "MODELSCOPE_", "TORCHINDUCTOR_", "TRITON_")
"""Prefixes of environment variables that name folders."""


def use_utf8() -> None:
    """Read and write UTF-8 in any locale, and print characters that a terminal cannot show as escapes.

    In a locale of another encoding, Python would decode a path's bytes differently from libraries in C and Rust. There,
    the program restarts in Python's UTF-8 mode, which its child processes inherit. Arguments that a terminal of that
    encoding has sent become the letters that were typed.
    """
    if sys.getfilesystemencoding() != "utf-8" and sys.orig_argv[1:3] != _UTF8_MODE:
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *_UTF8_MODE, *sys.orig_argv[1:]])
    other = _of_locale()
    if other is not None:
        sys.argv[1:] = [_typed(text, other) for text in sys.argv[1:]]
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = other if stream.isatty() and "PYTHONIOENCODING" not in os.environ else None
            stream.reconfigure(encoding=encoding, errors=None if stream is sys.stdin else "backslashreplace")


def _of_locale() -> str | None:
    """Return the locale's encoding where it has letters besides ASCII and UTF-8 mode hides it; else None."""
    if not sys.flags.utf8_mode:
        return None
    with suppress(LookupError):
        name = codecs.lookup(locale.nl_langinfo(locale.CODESET)).name
        return None if name in ("ascii", "utf-8") else name
    return None


def _typed(argument: str, encoding: str) -> str:
    """Return an argument's letters in the locale's encoding; bytes that are UTF-8, or an existing name's, stay."""
    if _is_utf8(argument) or _exists(argument):
        return argument
    try:
        return os.fsencode(argument).decode(encoding)
    except UnicodeDecodeError:
        return argument


def _is_utf8(text: str) -> bool:
    """Return whether the bytes of a name are UTF-8: Python holds others as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _exists(argument: str) -> bool:
    """Return whether an argument names a file or a folder, also one after `key=`."""
    return any(os.path.lexists(name) for name in (argument, argument.partition("=")[2]))


def find_other_bytes() -> str | None:
    """Return the error message for the first name in this command that is not UTF-8; None if all names are."""
    try:
        folder = os.getcwd()
    except OSError as error:
        return f"the working directory cannot be used ({error.strerror}): go to another one"
    for what, text in _names(folder):
        if _is_utf8(text):
            continue
        content = os.fsencode(text)
        # Escaped: a terminal would obey control characters.
        shown = repr(content)[2:-1]
        with suppress(UnicodeDecodeError):
            shown += f" (in GBK {content.decode('gbk')!r})"
        if _exists(text):
            remedy = "rename the file or folder, as convmv -f gbk -t utf-8 --notest NAME does"
        else:
            remedy = "give it in UTF-8, or set LC_ALL to the locale of your terminal"
        return f"{what} is not UTF-8: {shown}: {remedy}"
    return None


def _names(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the names that the command uses, as (description, name)."""
    yield from ((f"argument {number}", text) for number, text in enumerate(sys.argv[1:], 1))
    yield "the working directory", folder
    yield "the folder of EfficientBench", os.path.dirname(os.path.abspath(__file__))
    for name, value in os.environ.items():
        if name in _VARIABLES or name.startswith(_PREFIXES):
            yield name, value
