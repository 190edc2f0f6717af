"""Seconds of each kind of work in the steps of a trace that torch.profiler exported (Chrome's trace event format).

Where the trace has kernels of an accelerator, time is the device's: a kernel has the kind of the operation that started
it, and `idle` is time in which no stream of the device has work. Without such kernels, time is that of the training
thread's operations, and `idle` is the rest: Python, the engine, waiting.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.devices.registry import all_devices

MOST_BYTES = 1 << 30
"""Largest unpacked trace that is read."""
KINDS = ("matmuls", "attention", "norms", "loss", "optimizer", "other", "communication", "idle")
"""Kinds of work. `other`: activations, rotation, embedding, residuals, copies. `idle`: no operation runs."""

STEP = "training step"
"""Name of the annotation around each training step."""
OPTIMIZER = "optimizer step"
"""Name of the annotation around each optimizer step."""

KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
OPERATIONS = ("cpu_op", "user_annotation")

_SCOPES = {
    "loss": ("LinearCrossEntropy",),
    "norms": ("RMSNorm", "rms_norm", "RmsNorm"),
    "attention": (
        "scaled_dot_product",
        "ScaledDotProduct",
        "BlockedAttention",
        "BiasGradient",
        "flex_attention",
        "FlexAttention",
        "FusedAttn",
        "FlashAttn",
    ),
    "optimizer": (OPTIMIZER, "Optimizer.step"),
}
"""Kind → parts of the names of operations whose callees have that kind too. torch names backward nodes after them."""
_MATMULS = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::matmul",
    "aten::linear",
    "mkldnn::_linear_pointwise",
    "GroupedLinear",
)
_MATMUL_PARTS = ("grouped_mm", "GroupedLinear")

Scopes = Mapping[str, Sequence[str]]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Breakdown:
    """The time of the traced steps by kind of work."""

    steps: int
    """Number of traced steps."""
    step_time_s: float
    """Mean time of a traced step, in seconds."""
    seconds: dict[str, float]
    """Kind → seconds a step. Communication counts only where no computing hides it. The kinds add up to a step, except
    for kernels that run beside each other."""
    on_device: bool
    """Whether the times are those of an accelerator's kernels."""


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Read the events of an exported trace, plain or gzipped.

    Raises MetricsError: the file is not such a trace.
    """
    try:
        content = read_whole(path, MOST_BYTES)
        text = _unpacked(content) if path.suffix == ".gz" else content
        events = [event for event in parse_json(text)["traceEvents"] if event.get("ph") == "X"]
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetricsError(f"{path} is no trace of torch.profiler: {error}") from None
    return events


def _unpacked(content: bytes) -> bytes:
    """Return a gzipped file's content. Raises ValueError: it has more than MOST_BYTES, which memory may not hold."""
    with gzip.open(io.BytesIO(content)) as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ValueError(f"it unpacks to more than {MOST_BYTES:,} bytes, the most that is read")
    return text


def break_down(events: Iterable[Mapping[str, Any]], attention: Sequence[str] = ()) -> Breakdown:
    """Add up the seconds of each kind of work in the steps of a trace.

    Args:
        events: the events of the trace.
        attention: parts of the names of the attention variant's own operations.

    Raises:
        MetricsError: the trace has no training step.
    """
    events = list(events)
    scopes = {**_SCOPES, "attention": (*_SCOPES["attention"], *attention)}
    steps = [event for event in events if event.get("cat") == "user_annotation" and event["name"] == STEP]
    if not steps:
        raise MetricsError(f"the trace holds no '{STEP}': none was traced to its end")
    windows = union(map(_interval, steps))
    kinds = _operation_kinds(events, scopes)
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
    """Return each kernel with its kind: communication by its name, else the kind of the operation that started it."""
    spent = []
    for event in kernels:
        started_by = kinds.get(event.get("args", {}).get("External id", -1), _kind_of(event["name"]))
        spent.append(("communication" if _is_communication(event["name"]) else started_by, _interval(event)))
    return spent


def _on_host(events: list[Mapping[str, Any]], kinds: dict[int, str], thread: object) -> list[tuple[str, Interval]]:
    """Return the training thread's operations without their callees, and the collectives of other threads."""
    called: dict[int, list[Interval]] = defaultdict(list)
    for event, caller in _nested([each for each in events if each["tid"] == thread and each.get("cat") in OPERATIONS]):
        called[id(caller)].append(_interval(event))
    spent = []
    for event in events:
        if event.get("cat") == "cpu_op" and event["tid"] == thread:
            spent += [(kinds[id(event)], part) for part in without(_interval(event), called[id(event)])]
        elif event.get("cat") == "cpu_op" and _is_communication(event["name"]):
            spent.append(("communication", _interval(event)))
    return spent


def _operation_kinds(events: list[Mapping[str, Any]], named: Scopes) -> dict[int, str]:
    """Return the kind of every operation, by the object's identity and by its number in the trace ('External id').

    An operation that communicates keeps its kind. Any other operation has the kind of the outermost scope around it,
    else its own kind, else the kind of the nearest operation around it.
    """
    # Object identities are far above the numbers in a trace, so both fit into one dictionary.
    kinds: dict[int, str] = {}
    scopes: dict[int, str | None] = {}
    threads: dict[object, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") in OPERATIONS:
            threads[event["tid"]].append(event)
    for event, caller in chain.from_iterable(map(_nested, threads.values())):
        scopes[id(event)] = scope = scopes.get(id(caller)) or _scope_of(event["name"], named)
        own = _kind_of(event["name"])
        kind = own if own == "communication" else scope or (own if own != "other" else kinds.get(id(caller), "other"))
        kinds[id(event)] = kind
        number = event.get("args", {}).get("External id")
        if number is not None and event["cat"] == "cpu_op":
            kinds[number] = kind
    return kinds


def _nested(operations: list[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any] | None]]:
    """Yield each operation of a thread, in order, with the operation that called it; None where none did."""
    stack: list[Mapping[str, Any]] = []
    for event in sorted(operations, key=lambda event: (event["ts"], -event["dur"])):
        while stack and _interval(stack[-1])[1] <= event["ts"]:
            stack.pop()
        yield event, stack[-1] if stack else None
        stack.append(event)


def _interval(event: Mapping[str, Any]) -> Interval:
    return event["ts"], event["ts"] + event["dur"]


def _scope_of(name: str, scopes: Scopes) -> str | None:
    """Return the kind that an operation gives to all its callees; None where these have their own kinds."""
    return next((kind for kind, parts in scopes.items() if any(part in name for part in parts)), None)


def _kind_of(name: str) -> str:
    """Return the kind of an operation or kernel outside all scopes."""
    if _is_communication(name):
        return "communication"
    if name.startswith(_MATMULS) or any(part in name for part in _MATMUL_PARTS):
        return "matmuls"
    return "other"


def _is_communication(name: str) -> bool:
    """Return whether an operation or kernel belongs to torch's collectives or to a device's collective library."""
    backends = [device.backend for device in all_devices()]
    prefixes = [prefix for backend in backends for prefix in (f"{backend}:", f"{backend}DevKernel")]
    return name.startswith(("c10d::", *prefixes))


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals to ordered ones that do not touch."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def common(first: list[Interval], second: list[Interval]) -> list[Interval]:
    """Return the intersection of two lists of ordered intervals that do not touch."""
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
    """Return the intervals of `whole` that no part covers."""
    left, begin = [], whole[0]
    for part in union(parts):
        if part[0] > begin:
            left.append((begin, min(part[0], whole[1])))
        begin = max(begin, part[1])
    return [*left, (begin, whole[1])] if begin < whole[1] else left


def length(intervals: Iterable[Interval]) -> float:
    """Add up the lengths of intervals that do not overlap."""
    return sum(end - begin for begin, end in intervals)
