"""The two processes in the sandbox: one holds the program and answers calls, the other runs the tests.

`sandbox.py` starts both, and each gives up its rights (`confinement.py`). Whatever the program does to its own
process, the tests get only plain data from it, through a pipe (`plain_data.py`).
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from efficientbench.evaluation.code.confinement import give_up
from efficientbench.evaluation.code.plain_data import pack, receive, send, unpack

MODULE = "program"
"""The module from which tests import the program's functions."""
_REASONS = {
    errno.EAGAIN: "processes",
    errno.ENOMEM: "memory",
    errno.EFBIG: "files",
    errno.EACCES: "files",
    errno.ENETUNREACH: "network",
    errno.EPERM: "refused",
}

_ENDS_LOOPS = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Errors that Python takes for the end of a loop or of a generator: `all(map(f, [1]))` would be true."""


def reason(error: BaseException) -> str:
    """Return the limit or refusal that an error means, by its name in `Outcome.ended`; "error" if it means none."""
    # urllib's errors hold the error of the socket as `reason`.
    error = getattr(error, "reason", error)
    if isinstance(error, MemoryError):
        return "memory"
    if type(error).__name__ in ("gaierror", "herror"):
        return "network"
    # Python's error for a thread does not say why the thread cannot start.
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return "processes"
    return _REASONS.get(error.errno or 0, "error") if isinstance(error, OSError) else "error"


def _failure(error: BaseException) -> dict[str, Any]:
    kinds = [kind.__name__ for kind in type(error).__mro__]
    return {"ended": reason(error), "error": kinds[0], "kinds": kinds, "message": str(error)[:200]}


def _main_module() -> dict[str, Any]:
    """Make a new module `__main__`, in which dataclasses look up names, and return its namespace."""
    module = sys.modules["__main__"] = ModuleType("__main__")
    return vars(module)


def _run(source: str, name: str, namespace: dict[str, Any]) -> None:
    # Not with this file's own `from __future__`, which would make text of the annotations.
    exec(compile(source, name, "exec", dont_inherit=True), namespace)


def hold_program(requests: int, answers: int, held: dict[str, bool]) -> None:
    """Run the program of the first request, then answer calls of its functions, until the pipe closes."""
    send(answers, {"held": held})
    namespace = _main_module()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if "source" in request:
            _run(request["source"], "<program>", namespace)
            return {}
        objects: list[Any] = []
        name, arguments, named = unpack(request, objects)
        if not callable(namespace.get(name)):
            raise NameError(f"the program has no function {name}")
        # The objects carry the function's changes to its arguments.
        return pack(namespace[name](*arguments, **named), objects)

    while True:
        request = receive(requests)
        try:
            send(answers, answer(request))
        except BaseException as error:
            send(answers, _failure(error))


class _Lost(BaseException):
    """The program's process has ended, or its answer is not valid."""


class Program:
    """The program's process, as the tests see it."""

    def __init__(self, requests: int, answers: int) -> None:
        """Take the pipes for requests to the process and for its answers."""
        self.requests, self.answers = requests, answers
        self.lost: dict[str, str] | None = None
        """The outcome if the process was lost. The program then fails, whatever the tests catch."""

    def ask(self, request: dict[str, Any] | None) -> dict[str, Any]:
        """Send a request, if there is one, and return the answer. Raises _Lost."""
        try:
            if request is not None:
                send(self.requests, request)
            return receive(self.answers)
        except (EOFError, OSError):
            self.lost = {"ended": "left", "message": ""}
        except Exception as error:
            self._misunderstand(error)
        raise _Lost

    def call(self, name: str, /, *arguments: Any, **named: Any) -> Any:
        """Call a function of the program with plain data; return its result, and change the arguments as it does.

        Raises:
            TypeError: an argument is not plain data.
            BaseException: the function failed; the nearest builtin exception, or RuntimeError instead of one that would
                end a loop of the tests. The arguments are unchanged.
        """
        objects: list[Any] = []
        request = pack((name, arguments, named), objects)
        answer = self.ask(request)
        if "error" in answer:
            raise _as_builtin(answer)
        try:
            return unpack(answer, objects, request)
        except Exception as error:
            self._misunderstand(error)
        raise _Lost

    def _misunderstand(self, error: Exception) -> None:
        self.lost = {"ended": reason(error), "message": f"its answer is none: {type(error).__name__}: {error}"[:200]}


def _as_builtin(answer: dict[str, Any]) -> BaseException:
    """Return the exception that an answer reports: the first builtin one of its class and the classes above."""
    error: BaseException = RuntimeError(answer.get("message"))
    for kind in (getattr(builtins, str(name), None) for name in answer.get("kinds", ())):
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            continue
        if not issubclass(kind, _ENDS_LOOPS):
            try:
                error = kind(answer.get("message"))
            except TypeError:
                # Some exceptions need more than a message; those above them do not.
                continue
        break
    error.__dict__["answer"] = answer
    return error


def _outcome(failure: dict[str, Any]) -> dict[str, str]:
    """Return the outcome of a failure, which the program's process may have faked."""
    ended = next((each for each in _REASONS.values() if each == failure.get("ended")), "error")
    return {"ended": ended, "message": f"{failure['error']}: {failure.get('message')}"[:200]}


def run_tests(program: Program, source: str, tests: str) -> dict[str, str]:
    """Run a program in its process and its tests in this one; return how the program ended."""

    def function(name: str) -> Callable[..., Any]:
        # The import itself looks up such names in the module.
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **named: program.call(name, *arguments, **named)

    module = ModuleType(MODULE)
    module.__getattr__ = function  # type: ignore[method-assign]
    sys.modules[MODULE] = module
    try:
        answer = program.ask({"source": source})
        if "error" in answer:
            return _outcome(answer)
        _run(tests, "<tests>", _main_module())
    except BaseException as error:
        return program.lost or _outcome(getattr(error, "answer", _failure(error)))
    return program.lost or {"ended": "passed", "message": ""}


def main() -> None:
    """Run the side that the arguments name: "program" or "tests", limits, pipe of requests, pipe of answers.

    The tests' side reads its job from stdin. It writes two lines of JSON to stdout: which limits are in force, and how
    the program ended.
    """
    side, limits, requests, answers = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    job = json.load(sys.stdin) if side == "tests" else {}
    report, nowhere = os.dup(1), os.open(os.devnull, os.O_RDWR)
    held = give_up(**limits)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    if side == "program":
        with contextlib.suppress(EOFError):
            hold_program(requests, answers, held)
    else:
        program = Program(requests, answers)
        os.write(report, f"{json.dumps(program.ask(None)['held'])}\n".encode())
        os.write(report, json.dumps(run_tests(program, **job)).encode())
    # Skips whatever the program has registered for the exit of its interpreter.
    os._exit(0)
