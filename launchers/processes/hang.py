"""Find out whether the ranks of a run make progress, and if not, which of them the others wait for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from efficientbench.launchers.network.node_link import NodeLink, content
from efficientbench.launchers.processes.failure import Failure
from efficientbench.launchers.processes.heartbeat import INTERVAL_S, STARTING, Beat
from efficientbench.launchers.processes.worker_process import WorkerProcess

START_S = 300.0
"""Seconds that ranks may take to load libraries from a slow file system."""
SILENT_S = 3.0
"""Seconds without a heartbeat after which the rank's process itself counts as stopped."""
EXCHANGE_S = 5.0
"""Seconds that the other nodes have to send their ranks' heartbeats."""

Beats = Mapping[int, Beat | None]
"""Rank → its last heartbeat; None for a rank that wrote none."""


class ProgressWatch:
    """Notices when no rank of a node makes progress."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._last: object = None
        self._since_s = time.monotonic()

    def left_s(self, beats: Beats) -> float:
        """Return the seconds that steps, phases and collectives of all ranks may still stay the same.

        Ranks that load their libraries wait for nobody, and get START_S at least.
        """
        now = {rank: (beat.step, beat.phase, beat.collectives) if beat else None for rank, beat in beats.items()}
        if now != self._last:
            self._last, self._since_s = now, time.monotonic()
        starting = any(beat is None or beat.phase == STARTING for beat in beats.values())
        limit_s = max(self._limit_s, START_S) if starting else self._limit_s
        return self._since_s + limit_s - time.monotonic()


class HangDetector:
    """Watches this node's ranks; once they hang, nodes exchange heartbeats.

    Node 0 names the missing rank. Where the ranks of another node make progress, for instance while rank 0 hashes what
    it saved, nothing hangs.
    """

    def __init__(self, workers: list[WorkerProcess], link: NodeLink, limit_s: float) -> None:
        """`limit_s`: seconds that the run may go without progress."""
        self._workers, self._link, self._limit_s = workers, link, limit_s
        self._watch = ProgressWatch(limit_s)
        self._next_look_s = 0.0
        self._beats: dict[int, dict[int, Beat | None]] = {}
        """Node → its ranks' heartbeats; empty until the ranks of some node hang."""
        self._left_s: dict[int, float] = {}
        """Node → the seconds that its ranks may still go without progress."""
        self._ended: dict[int, str] = {}
        self._deadline_s = 0.0

    def receive(self, message: Mapping[str, Any]) -> None:
        """Take another node's heartbeats."""
        if message["kind"] == "heartbeats":
            beats, ended = content(message, "beats", dict[int, Beat | None]), content(message, "ended", dict[int, str])
            left_s = content(message, "left_s", float)
            if beats is not None and ended is not None and left_s is not None:
                self._send_beats()
                self._beats[message["node"]], self._left_s[message["node"]] = beats, left_s
                self._ended |= ended

    def look(self) -> Failure | None:
        """Return the hang as a failure, once it is clear which rank is at fault; None before."""
        if not self._beats and time.monotonic() >= self._next_look_s:
            self._next_look_s = time.monotonic() + INTERVAL_S
            if self._watch.left_s({worker.rank: worker.beat() for worker in self._workers}) <= 0:
                self._send_beats()
        if not self._beats:
            return None
        all_told = len(self._beats) == self._link.nodes
        left_s = max(self._left_s.values())
        if all_told and left_s > 0:
            # Not before every node has this exchange's messages.
            self._next_look_s = time.monotonic() + max(left_s, EXCHANGE_S)
            for told in (self._beats, self._left_s, self._ended):
                told.clear()
            return None
        complete = self._link.node == 0 and all_told
        # Node 0 names the rank for all, unless node 0 itself is silent.
        patience_s = 0.0 if self._link.node == 0 else EXCHANGE_S
        overdue = time.monotonic() >= self._deadline_s + patience_s
        return self._failure() if complete or overdue else None

    def _send_beats(self) -> None:
        """Send this node's heartbeats to the other nodes, once."""
        if self._link.node in self._beats:
            return
        self._deadline_s = time.monotonic() + EXCHANGE_S
        left_s = self._watch.left_s({worker.rank: worker.beat() for worker in self._workers})
        own = {worker.rank: worker.beat() for worker in self._workers if worker.exit_code() is None}
        ended = {worker.rank: "has ended" for worker in self._workers if worker.exit_code() is not None}
        self._beats[self._link.node], self._left_s[self._link.node] = own, left_s
        self._ended |= ended
        beats = {rank: asdict(beat) if beat else None for rank, beat in own.items()}
        self._link.send("heartbeats", beats=beats, ended=ended, left_s=left_s)

    def _failure(self) -> Failure:
        beats = {rank: beat for node in self._beats.values() for rank, beat in node.items()}
        absent = dict(self._ended)
        for node in set(range(self._link.nodes)) - set(self._beats):
            ranks = range(node * len(self._workers), (node + 1) * len(self._workers))
            absent |= dict.fromkeys(ranks, f"node {node} gave no sign of life")
        rank, reason = describe_hang(beats, absent, self._limit_s)
        steps = [beat.step for beat in beats.values() if beat is not None]
        node = rank // len(self._workers) if rank is not None else self._link.node
        return Failure("hung", reason, rank=rank, step=max(steps, default=None), node=node)


def describe_hang(beats: Beats, absent: Mapping[int, str], limit_s: float) -> tuple[int | None, str]:
    """Return the first rank that did not arrive (None: all wait for each other), and the message for the user.

    Args:
        beats: the heartbeats of every rank that can still give one.
        absent: rank → why it can give none.
        limit_s: seconds for which no rank made progress.
    """
    if len(beats) == 1 and not absent:
        ((rank, beat),) = beats.items()
        return rank, f"hung: made no progress for {limit_s:g} s ({_describe(beat)}; hang_limit_s allows longer steps)"
    silent = [rank for rank, beat in beats.items() if beat is None or beat.age_s > SILENT_S]
    missing = {**absent, **{rank: _describe(beats[rank]) for rank in silent}}
    # The ranks that still write heartbeats show who waits for whom.
    missing = missing or {rank: _describe(beats[rank]) for rank in _waited_for(beats)}
    hung = f"hung: no rank made progress for {limit_s:g} s"
    if not missing:
        where = "; ".join(f"rank {rank}: {_describe(beat)}" for rank, beat in sorted(beats.items()))
        return None, f"{hung}, and all wait for each other ({where})"
    if len(missing) == 1:
        ((rank, description),) = missing.items()
        return rank, f"{hung}; rank {rank} did not arrive ({description})"
    ranks = ", ".join(map(str, sorted(missing)))
    descriptions = "; ".join(f"rank {rank}: {missing[rank]}" for rank in sorted(missing))
    return min(missing), f"{hung}; ranks {ranks} did not arrive ({descriptions})"


def _waited_for(beats: Beats) -> list[int]:
    """Return the ranks that the others wait for, by the clearest evidence that there is."""
    known = {rank: beat for rank, beat in beats.items() if beat is not None}
    behind = _behind(known)
    if behind:
        return behind
    busy = [rank for rank, beat in known.items() if not beat.waits]
    if 0 < len(busy) < len(known):
        return busy
    steps = {beat.step for beat in known.values()}
    return [rank for rank, beat in known.items() if beat.step == min(steps)] if len(steps) > 1 else []


def _behind(beats: Mapping[int, Beat]) -> list[int]:
    """Return the ranks that have begun fewer collectives than others in some process group, and more in none.

    A rank that waits for one group falls behind in its other groups; but it is ahead of the rank it waits for.
    """
    counts: dict[str, dict[int, int]] = {}
    for rank, beat in beats.items():
        for group, count in beat.collectives.items():
            counts.setdefault(group, {})[rank] = count
    lags = {rank for group in counts.values() for rank, count in group.items() if count < max(group.values())}
    leads = {rank for group in counts.values() for rank, count in group.items() if count > min(group.values())}
    return sorted(lags - leads)


def _describe(beat: Beat | None) -> str:
    if beat is None:
        return "gave no sign of life"
    phase = f"in step {beat.step}, {beat.phase}" if beat.step else beat.phase
    line = f" at {beat.line}" if beat.line else ""
    silence = f", silent for {beat.age_s:.0f} s" if beat.age_s > SILENT_S else ""
    return f"{phase}{line}{silence}{f', {beat.process_state}' if beat.process_state else ''}"
