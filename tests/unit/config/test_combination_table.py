"""Layouts of each variant: a product of them works where each of its parts does."""

from __future__ import annotations

from itertools import combinations

from efficientbench.config.combination_table import PARTS, refusals, run_of_each_variant


def products() -> list[tuple[str, ...]]:
    """Return every product of the parts, each parallelism once."""
    alternatives = ({"TP", "TP + SP"}, {"PP", "PP interleaved"})
    return [
        chosen
        for count in range(1, len(PARTS) + 1)
        for chosen in combinations(PARTS, count)
        if not any(each <= set(chosen) for each in alternatives)
    ]


def test_a_combined_layout_works_where_each_of_its_parts_does() -> None:
    for name in run_of_each_variant().values():
        refused = {part for parts in products() if len(parts) == 1 and refusals(name, parts) for part in parts}
        for parts in products():
            assert bool(refusals(name, parts)) == bool(refused & set(parts)), (name, parts)


def test_experts_are_refused_layouts_that_they_do_not_support() -> None:
    assert "set parallel.sp=true" in refusals("moe_1.5Bx8", ("TP",))[0]
    assert "experts that the model does not have" in refusals("gqa_1.5B", ("EP",))[0]
    assert not refusals("moe_1.5Bx8", ("TP + SP", "PP interleaved", "DP", "EP", "CP", "recompute"))
