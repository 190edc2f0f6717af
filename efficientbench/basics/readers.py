"""Output that outlives its reader: a terminal that was closed, or a program behind a pipe that ended."""

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
    """A file that drops output once its reader has gone."""

    def __init__(self, descriptor: int, gone: int) -> None:
        """`gone`: the error number of a write without a reader."""
        super().__init__(descriptor, "wb", closefd=False)
        self._gone = gone

    def write(self, data: Buffer, /) -> int:
        """Write or drop the data, and return its number of bytes written or dropped."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != self._gone:
                raise
            return memoryview(data).nbytes


def outlive_readers(pipes: bool = False) -> None:
    """Drop output to a closed terminal, whose write error would end a process that still has to save its state.

    `pipes`: also drop output to a pipe without a reader, such as a `tee` that ended with the terminal.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # Closed at the start, or captured.
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
            # Like Python itself, which has no buffer with -u.
            file if stream.write_through else io.BufferedWriter(file),  # type: ignore[arg-type]
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, lasting)
