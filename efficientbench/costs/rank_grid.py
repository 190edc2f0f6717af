"""The process groups of ranks in the engine's order, and the nodes that they span, without the engine.

Rank = tp + TP · (cp + CP · (dp + DP · pp)). Expert groups have a grid of their own, with expert_tp = 1 where ep > 1:
rank = expert_tp + ETP · (ep + EP · (expert_dp + …)).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from efficientbench.config.layout import Layout

Group = Literal["tp", "cp", "tp × cp", "dp", "ep", "expert dp", "pp", "embedding", "world"]
"""Kinds of group. `dp`: the cp × dp ranks with the same weights; `expert dp`: the ranks with the same experts;
`embedding`: the first and the last stage of a pipeline."""


@dataclass(frozen=True)
class Span:
    """The reach of the groups of one kind, taken from the group that crosses most nodes."""

    size: int
    """Ranks in a group."""
    nodes: int
    """Nodes with ranks of the group."""
    per_node: int
    """Ranks of the group on the node with the fewest."""


@dataclass(frozen=True)
class RankGrid:
    """The ranks of a layout, numbered node after node."""

    layout: Layout

    def groups(self, kind: Group) -> list[tuple[int, ...]]:
        """Return every group of a kind; each rank is in one group, but inner stages are in none of `embedding`."""
        layout = self.layout
        stride, size = self._shape(kind)
        groups = [
            tuple(range(first + offset, first + offset + stride * size, stride))
            for first in range(0, layout.world_size, stride * size)
            for offset in range(stride)
        ]
        return [(group[0], group[-1]) for group in groups] if kind == "embedding" and layout.pp > 1 else groups

    def span(self, kind: Group) -> Span:
        """Return the reach of the groups of a kind."""
        return self._spans[kind]

    def sends_between_nodes(self, stage: int) -> bool:
        """Return whether any rank of a stage sends activations to the next stage on another node.

        In interleaved 1F1B the last stage sends them to the first.
        """
        layout = self.layout
        if stage == layout.pp - 1 and layout.vpp == 1:
            return False
        per_stage, per_node = layout.world_size // layout.pp, layout.ranks_per_node
        # A rank sends to the one that is as many ranks ahead as a stage has.
        ranks = range(stage * per_stage, (stage + 1) * per_stage)
        return any(rank // per_node != (rank + per_stage) % layout.world_size // per_node for rank in ranks)

    @cached_property
    def _spans(self) -> dict[Group, Span]:
        """The reach of every kind, cached since a search over layouts asks for it many times."""
        return {kind: self._reach(kind) for kind in get_args(Group)}

    def _shape(self, kind: Group) -> tuple[int, int]:
        """Return the distance between neighbours in a group of a kind, and its number of ranks."""
        layout = self.layout
        replicas = layout.cp * layout.dp
        stage = layout.tp * replicas
        expert_tp = layout.tp if layout.ep == 1 else 1
        shape: dict[str, tuple[int, int]] = {
            "tp": (1, layout.tp),
            "cp": (layout.tp, layout.cp),
            "tp × cp": (1, layout.tp * layout.cp),
            "dp": (layout.tp, replicas),
            "ep": (expert_tp, layout.ep),
            "expert dp": (expert_tp * layout.ep, stage // (expert_tp * layout.ep)),
            "pp": (stage, layout.pp),
            "embedding": (stage, layout.pp),
            "world": (1, layout.world_size),
        }
        return shape[kind]

    def _reach(self, kind: Group) -> Span:
        """Return the reach of a kind: by its shape where that fills nodes evenly, else from all its groups."""
        (stride, size), per_node = self._shape(kind), self.layout.ranks_per_node
        ends_only = kind == "embedding" and size > 1
        if stride % per_node == 0:
            return Span(2, 2, 1) if ends_only else Span(size, size, 1)
        if not ends_only and per_node % (stride * size) == 0:
            return Span(size, 1, size)
        if not ends_only and per_node % stride == 0 and stride * size % per_node == 0:
            return Span(size, stride * size // per_node, per_node // stride)
        return max((self._span(group) for group in self.groups(kind)), key=lambda span: (span.nodes, -span.per_node))

    def _span(self, group: tuple[int, ...]) -> Span:
        on_node = Counter(rank // self.layout.ranks_per_node for rank in group)
        return Span(len(group), len(on_node), min(on_node.values()))
