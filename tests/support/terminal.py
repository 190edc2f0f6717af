"""Commands in pseudo-terminals."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess

from support.command_line import TIME_LIMIT_S, command, environment


class Terminal:
    """A command in a pseudo-terminal of its own, so that Ctrl-C reaches it as it does in a shell."""

    def __init__(self, words: tuple[str, ...], hangup: signal.Handlers = signal.SIG_DFL) -> None:
        """`hangup`: what SIGHUP means to the command; SIG_IGN as under nohup."""
        self.main, terminal = pty.openpty()

        def prepare() -> None:
            signal.signal(signal.SIGHUP, hangup)
            os.close(os.open(os.ttyname(0), os.O_RDWR))

        self.process = subprocess.Popen(
            command(*words),
            env=environment(TERM="xterm-256color", LINES="40"),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=prepare,
        )
        os.close(terminal)
        self.shown = b""

    def read_until(self, pattern: bytes | None) -> bytes:
        """All that was shown, once it has `pattern`, or once the command has ended."""
        while pattern is None or re.search(pattern, self.shown) is None:
            try:
                self.shown += os.read(self.main, 65536)
            except OSError:
                assert pattern is None, f"ended without {pattern!r}: {self.shown[-2000:]!r}"
                break
        return self.shown

    def close(self) -> int:
        """What a user does who closes the window; the command's exit code, once it has ended."""
        os.close(self.main)
        return self.process.wait(TIME_LIMIT_S)

    def end(self) -> int:
        self.read_until(None)
        os.close(self.main)
        return self.process.wait(60)
