"""A trace as torch.profiler exports it (Chrome's trace event format) → seconds of each kind of work in its steps.

Where the trace has kernels of an accelerator, time is the device's: a kernel has the kind of the operation that started
it, and idle are the gaps in which no stream of the device has work. Where it has none, time is that of the operations
themselves on the thread that trains, and idle is what is left: Python, the engine, waiting.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efficientbench.metrics.errors import MetricsError
from efficientbench.profiling.kinds import KINDS, STEP, is_communication, kind_of, scope_of

KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
OPERATIONS = ("cpu_op", "user_annotation")

Interval = tuple[float, float]


@dataclass(frozen=True)
class Breakdown:
    """Where the time of the traced steps went."""

    steps: int
    step_time_s: float
    """Mean of the traced steps."""
    seconds: dict[str, float]
    """Kind → seconds a step; of communication only what no computing hides. The kinds add up to a step, but for kernels
    that run beside each other."""
    on_device: bool
    """Whether these are times of an accelerator's kernels."""


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events of an exported trace, plain or gzipped.

    Raises:
        MetricsError: a file that is no such trace.
    """
    try:
        content = path.read_bytes()
        text = gzip.decompress(content) if path.suffix == ".gz" else content
        events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise MetricsError(f"{path} is no trace of torch.profiler: {error}") from None
    return [event for event in events if event.get("ph") == "X"]


def break_down(events: Iterable[Mapping[str, Any]]) -> Breakdown:
    """Seconds of each kind of work in the steps of a trace.

    Raises:
        MetricsError: a trace without a training step.
    """
    events = list(events)
    steps = [event for event in events if event.get("cat") == "user_annotation" and event["name"] == STEP]
    if not steps:
        raise MetricsError(f"the trace holds no '{STEP}': none was traced to its end")
    windows = union((event["ts"], event["ts"] + event["dur"]) for event in steps)
    kinds = _operation_kinds(events)
    kernels = [event for event in events if event.get("cat") in KERNELS]
    spent = _on_device(kernels, kinds) if kernels else _on_host(events, kinds, steps[0]["tid"])
    computing = union(interval for kind, interval in spent if kind != "communication")
    seconds = dict.fromkeys(KINDS, 0.0)
    for kind, interval in spent:
        if kind != "communication":
            seconds[kind] += length(common([interval], windows))
    sending = common(union(interval for kind, interval in spent if kind == "communication"), windows)
    seconds["communication"] = length(sending) - length(common(sending, computing))
    busy = union([*computing, *sending])
    seconds["idle"] = length(windows) - length(common(busy, windows))
    count = len(steps)
    return Breakdown(
        steps=count,
        step_time_s=length(windows) / count / 1e6,
        seconds={kind: time_us / count / 1e6 for kind, time_us in seconds.items()},
        on_device=bool(kernels),
    )


def _on_device(kernels: list[Mapping[str, Any]], kinds: dict[int, str]) -> list[tuple[str, Interval]]:
    """Each kernel with its kind: that of the operation that started it, unless its name says that it communicates."""
    spent = []
    for event in kernels:
        started_by = kinds.get(event.get("args", {}).get("External id", -1), kind_of(event["name"]))
        kind = "communication" if is_communication(event["name"]) else started_by
        spent.append((kind, (event["ts"], event["ts"] + event["dur"])))
    return spent


def _on_host(events: list[Mapping[str, Any]], kinds: dict[int, str], thread: object) -> list[tuple[str, Interval]]:
    """What the training thread's operations take themselves, without those that they call; and what the collectives'
    library does in threads of its own."""
    spent = []
    for event, parts in _self_times(event for event in events if event["tid"] == thread):
        if event["cat"] == "cpu_op":
            kind = kinds[id(event)]
            spent += [(kind, part) for part in parts]
    for event in events:
        if event["tid"] != thread and event.get("cat") == "cpu_op" and is_communication(event["name"]):
            spent.append(("communication", (event["ts"], event["ts"] + event["dur"])))
    return spent


def _operation_kinds(events: list[Mapping[str, Any]]) -> dict[int, str]:
    """The kind of every operation, by the object's identity and by its number in the trace ('External id'): of those
    that enclose it the outermost scope's, else the nearest's that has a kind, unless it communicates."""
    kinds: dict[int, str] = {}
    threads: dict[object, list[Mapping[str, Any]]] = {}
    for event in events:
        if event.get("cat") in OPERATIONS:
            threads.setdefault(event["tid"], []).append(event)
    for operations in threads.values():
        stack: list[tuple[float, str | None, str]] = []
        for event in sorted(operations, key=lambda event: (event["ts"], -event["dur"])):
            while stack and stack[-1][0] <= event["ts"]:
                stack.pop()
            outer_scope, outer_kind = stack[-1][1:] if stack else (None, "other")
            scope = outer_scope or scope_of(event["name"])
            own = kind_of(event["name"])
            kind = own if own == "communication" else scope or (own if own != "other" else outer_kind)
            stack.append((event["ts"] + event["dur"], scope, kind))
            kinds[id(event)] = kind
            number = event.get("args", {}).get("External id")
            if number is not None and event["cat"] == "cpu_op":
                kinds[number] = kind
    return kinds


def _self_times(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], list[Interval]]]:
    """Each operation of a thread with the parts of its time in which it calls no other."""
    operations = [event for event in events if event.get("cat") in OPERATIONS]
    stack: list[tuple[Mapping[str, Any], list[Interval]]] = []
    for event in sorted(operations, key=lambda event: (event["ts"], -event["dur"])):
        while stack and _end(stack[-1][0]) <= event["ts"]:
            done, called = stack.pop()
            yield done, without((done["ts"], _end(done)), called)
        if stack:
            stack[-1][1].append((event["ts"], _end(event)))
        stack.append((event, []))
    for done, called in reversed(stack):
        yield done, without((done["ts"], _end(done)), called)


def _end(event: Mapping[str, Any]) -> float:
    return float(event["ts"] + event["dur"])


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as intervals that do not touch, in order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def common(first: list[Interval], second: list[Interval]) -> list[Interval]:
    """What both hold; each in order and without touching."""
    found, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        begin, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if begin < end:
            found.append((begin, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def without(whole: Interval, parts: list[Interval]) -> list[Interval]:
    """What of `whole` no part covers."""
    left, begin = [], whole[0]
    for part in union(parts):
        if part[0] > begin:
            left.append((begin, min(part[0], whole[1])))
        begin = max(begin, part[1])
    return [*left, (begin, whole[1])] if begin < whole[1] else left


def length(intervals: Iterable[Interval]) -> float:
    """Of intervals that do not overlap, the sum."""
    return sum(end - begin for begin, end in intervals)
