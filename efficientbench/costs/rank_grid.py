"""Which ranks form which group, and which groups lie within a node: the engine's order of ranks, without the engine.

Rank = tp + TP · (cp + CP · (dp + DP · pp)). Ranks that share experts are counted apart, with experts split over no
rank where ep > 1: rank = expert_tp + ETP · (ep + EP · (expert_dp + …)).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from efficientbench.config.layout import Layout

Group = Literal["tp", "cp", "tp × cp", "dp", "ep", "expert dp", "pp", "embedding", "world"]
"""Kinds of group: `dp` are the ranks that hold the same weights, of cp × dp; `expert dp` those that hold the same
experts; `embedding` the first and the last stage of a pipeline."""


@dataclass(frozen=True)
class Span:
    """The groups of one kind, by the one that crosses most nodes."""

    size: int
    """Ranks of a group."""
    nodes: int
    """Nodes that the group's ranks lie on."""
    per_node: int
    """Ranks of the group on the node with fewest of them."""


@dataclass(frozen=True)
class RankGrid:
    """A layout's ranks, numbered node after node."""

    layout: Layout

    def groups(self, kind: Group) -> list[tuple[int, ...]]:
        """Every group of that kind; each rank is in one, but for `embedding`, which leaves out the inner stages."""
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
        stride, size = shape[kind]
        groups = [
            tuple(range(first + offset, first + offset + stride * size, stride))
            for first in range(0, layout.world_size, stride * size)
            for offset in range(stride)
        ]
        return [(group[0], group[-1]) for group in groups] if kind == "embedding" and layout.pp > 1 else groups

    def span(self, kind: Group) -> Span:
        """How far the groups of that kind reach."""
        return max((self._span(group) for group in self.groups(kind)), key=lambda span: (span.nodes, -span.per_node))

    def stage_ranks(self, stage: int) -> range:
        """The ranks of a pipeline stage."""
        per_stage = self.layout.world_size // self.layout.pp
        return range(stage * per_stage, (stage + 1) * per_stage)

    def sends_between_nodes(self, stage: int) -> bool:
        """Whether any rank of a stage hands activations to a rank of the next stage on another node; interleaved, the
        last stage hands them to the first."""
        layout = self.layout
        if stage == layout.pp - 1 and layout.vpp == 1:
            return False
        ahead, per_node = layout.world_size // layout.pp, layout.ranks_per_node
        return any(
            rank // per_node != (rank + ahead) % layout.world_size // per_node for rank in self.stage_ranks(stage)
        )

    def _span(self, group: tuple[int, ...]) -> Span:
        on_node = Counter(rank // self.layout.ranks_per_node for rank in group)
        return Span(len(group), len(on_node), min(on_node.values()))
