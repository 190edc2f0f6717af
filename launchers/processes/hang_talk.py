"""What the launchers of all nodes say to each other once the ranks of one of them get on no more."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from efficientbench.launchers.network.node_link import NodeLink
from efficientbench.launchers.processes.failure import Failure
from efficientbench.launchers.processes.hang import HangWatch, describe_hang
from efficientbench.launchers.processes.liveness import INTERVAL_S, Sign
from efficientbench.launchers.processes.worker_process import WorkerProcess

ANSWER_S = 5.0
"""How long the other nodes have to tell of their ranks."""


class HangTalk:
    """Watches this node's ranks; where they are stuck, gathers the signs of all nodes' ranks and names who is missing.

    Each node tells its ranks' signs to all, and node 0 says what they mean.
    """

    def __init__(self, workers: list[WorkerProcess], link: NodeLink, limit_s: float | None) -> None:
        """`limit_s`: of a whole without progress; None: none is watched."""
        self._workers, self._link, self._limit_s = workers, link, limit_s
        alone = link.nodes == 1 and len(workers) == 1
        self._watch = HangWatch(limit_s) if limit_s is not None and not alone else None
        self._looked_s = 0.0
        self._signs: dict[int, dict[int, Sign | None]] = {}
        """Node → its ranks' signs; empty until some node is stuck."""
        self._ended: dict[int, str] = {}
        self._deadline_s = 0.0

    def hear(self, message: Mapping[str, Any]) -> None:
        """Another node's word."""
        if message["kind"] == "signs" and self._watch is not None:
            self._begin()
            given = message.get("signs") or {}
            self._signs[message["node"]] = {int(rank): Sign(**sign) if sign else None for rank, sign in given.items()}
            self._ended |= {int(rank): str(why) for rank, why in (message.get("ended") or {}).items()}

    def look(self) -> Failure | None:
        """The hang, once it is clear whose it is."""
        if self._watch is None:
            return None
        if not self._signs:
            if time.monotonic() < self._looked_s + INTERVAL_S:
                return None
            self._looked_s = time.monotonic()
            if self._watch.is_stuck({worker.rank: worker.sign() for worker in self._workers}):
                self._begin()
        if not self._signs:
            return None
        # Node 0 speaks for all, unless it is the one that says nothing.
        patience_s = 0.0 if self._link.node == 0 else ANSWER_S
        if time.monotonic() < self._deadline_s + patience_s:
            return None if len(self._signs) < self._link.nodes or self._link.node > 0 else self._named()
        return self._named()

    def _begin(self) -> None:
        """Tell the other nodes where this one's ranks are, once."""
        if self._link.node in self._signs:
            return
        self._deadline_s = time.monotonic() + ANSWER_S
        own = {worker.rank: worker.sign() for worker in self._workers if worker.exit_code() is None}
        ended = {worker.rank: "has ended" for worker in self._workers if worker.exit_code() is not None}
        self._signs[self._link.node], self._ended = own, self._ended | ended
        told = {rank: asdict(sign) if sign else None for rank, sign in own.items()}
        self._link.send("signs", signs=told, ended=ended)

    def _named(self) -> Failure:
        assert self._limit_s is not None
        signs = {rank: sign for node in self._signs.values() for rank, sign in node.items()}
        absent = dict(self._ended)
        for node in set(range(self._link.nodes)) - set(self._signs):
            ranks = range(node * len(self._workers), (node + 1) * len(self._workers))
            absent |= dict.fromkeys(ranks, f"node {node} gave no sign of life")
        rank, reason = describe_hang(signs, absent, self._limit_s)
        steps = [sign.step for sign in signs.values() if sign is not None]
        node = rank // len(self._workers) if rank is not None else self._link.node
        return Failure("hung", rank, reason, 1, max(steps, default=None), node, time.time())
