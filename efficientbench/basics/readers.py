"""Output that goes on where nobody reads it any more: its terminal was closed, or the program behind a pipe ended."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _LastingFile(io.FileIO):
    """A file that drops what is written to it once its reader has gone."""

    def __init__(self, descriptor: int, gone: int) -> None:
        """`gone`: the error number of writing where nobody reads."""
        super().__init__(descriptor, "wb", closefd=False)
        self._gone = gone

    def write(self, data: Buffer, /) -> int:
        """Write, and return how many bytes were taken."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != self._gone:
                raise
            return memoryview(data).nbytes


def outlive_readers(pipes: bool = False) -> None:
    """Let writing to a terminal that was closed do nothing: else its error ends what still has to save its state.

    Args:
        pipes: likewise writing to a pipe that nobody reads, such as that to a `tee` which the terminal has ended.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # Closed at the start, or in the hands of somebody who captures it.
        if stream is None or stream is not getattr(sys, f"__{name}__"):
            continue
        descriptor = stream.fileno()
        if os.isatty(descriptor):
            gone = errno.EIO
        elif pipes and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            gone = errno.EPIPE
        else:
            continue
        stream.flush()
        file = _LastingFile(descriptor, gone)
        lasting = io.TextIOWrapper(
            # As Python itself, which has no buffer with -u.
            file if stream.write_through else io.BufferedWriter(file),  # type: ignore[arg-type]
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, lasting)
