"""The command `efficientbench compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from efficientbench.cli.options import find_run, names, option

if TYPE_CHECKING:
    from efficientbench.metrics.analysis.repeats import Group
    from efficientbench.metrics.analysis.thresholds import Threshold


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="folder of a run, or of its repeats; its name in output/")],
    others: Annotated[list[str], typer.Argument(metavar="B...", help="the same of other runs; ratios are B over A")],
    despite: Annotated[str, option("LIST", "conditions that may differ, like dtype,layout")] = "",
    best_of: Annotated[
        str, option("LIST", "like training.learning_rate: take the best of each side and of the runs beside it")
    ] = "",
    target_loss: Annotated[
        float | None, typer.Option(help="print tokens, time and energy to this validation loss")
    ] = None,
    served_tokens: Annotated[
        float | None,
        option("N", "like 1e12: print what training and serving so many tokens take, by `generate --measure`", 0.0),
    ] = None,
    price_per_hour: Annotated[
        float | None, option("X", "with --served-tokens: of one device, in currency", 0.0)
    ] = None,
    weights: Annotated[
        str, option("LIST", "width of the weights that A and B generate and are evaluated with, like none,int4_g128")
    ] = "none",
    fail_if: Annotated[
        list[str] | None, option("CHANGE", "like tokens_per_s<-3%: exit with 1 where B shows it; may be repeated")
    ] = None,
    junit: Annotated[Path | None, option("FILE", "with --fail-if: write the outcomes as JUnit's XML")] = None,
    summary: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", envvar="GITHUB_STEP_SUMMARY", help="append outcomes and figures to this Markdown file"
        ),
    ] = None,
) -> None:
    """Print by how much runs differ from the first, and whether that is more than noise."""
    if price_per_hour is not None and served_tokens is None:
        raise typer.BadParameter("--price-per-hour goes with --served-tokens N")
    if junit is not None and not fail_if:
        raise typer.BadParameter("--junit goes with --fail-if CHANGE")
    if best_of and (fail_if or served_tokens is not None):
        raise typer.BadParameter("--best-of goes without --fail-if and --served-tokens")
    widths = names(weights)
    if len(widths) not in (1, 2):
        raise typer.BadParameter("--weights: one width for A and B, or two, like none,int4_g128")
    if len(others) > 1 and (junit is not None or served_tokens is not None):
        raise typer.BadParameter("--junit and --served-tokens go with one B")
    from efficientbench.metrics.analysis.repeats import load_group
    from efficientbench.metrics.analysis.thresholds import Threshold

    thresholds = [Threshold.of(text) for text in fail_if or ()]
    sides = (widths[0], widths[-1])
    asked = _Asked(names(despite), names(best_of), target_loss, served_tokens, price_per_hour, sides)
    folders = [find_run(word) for word in (first, *others)]
    # All are read before the first table is printed, so that a mistake is the only thing on the screen.
    base, *rest = [(folder, load_group(folder)) for folder in folders]
    failed = False
    for other in rest:
        if len(others) > 1:
            typer.echo(f"\n{other[0]} against {base[0]}")
        failed |= _compare_two(base, other, asked, thresholds, junit, summary)
    if len(others) > 1:
        typer.echo(f"{len(others)} comparisons, each by itself; `efficientbench report` judges all rows together")
    if failed:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Asked:
    """What is asked of each comparison: the options of these names."""

    despite: tuple[str, ...]
    best_of: tuple[str, ...]
    target_loss: float | None
    served_tokens: float | None
    price_per_hour: float | None
    weights: tuple[str, str]


def _compare_two(
    base: tuple[Path, Group],
    other: tuple[Path, Group],
    asked: _Asked,
    thresholds: Sequence[Threshold],
    junit: Path | None,
    summary: Path | None,
) -> bool:
    """Print how the runs of one folder differ from those of another; return whether a threshold is crossed."""
    from rich.console import Console

    from efficientbench.metrics.analysis.compare import compare as compare_groups
    from efficientbench.metrics.analysis.fewer_bits import width_folder
    from efficientbench.metrics.analysis.generation import OF_GENERATION, load_generated
    from efficientbench.metrics.analysis.life_cost import Model, compare_lives, losses_of
    from efficientbench.metrics.analysis.paired import pair_evaluations
    from efficientbench.metrics.analysis.repeats import load_neighbours
    from efficientbench.metrics.analysis.stages import earlier_stages
    from efficientbench.metrics.analysis.thresholds import judge
    from efficientbench.metrics.report.comparison import print_comparison
    from efficientbench.metrics.report.sections.evaluations import print_evaluations
    from efficientbench.metrics.report.sections.generation import print_generation_ratios
    from efficientbench.metrics.report.sections.lives import print_lives
    from efficientbench.metrics.report.sections.thresholds import append_summary, print_outcomes, write_junit
    from efficientbench.metrics.report.study_link import study_of

    allowed = asked.despite
    (first, one), (second, another) = base, other
    groups = one, another
    widths = list(zip((first, second), asked.weights, strict=True))
    evaluated = [width_folder(*each) for each in widths]
    made = [load_generated(folder, asked.served_tokens is not None, width) for folder, width in widths]
    sides = list(zip(groups, made, strict=True))
    of_training = [name for name in allowed if not (all(made) and name in OF_GENERATION)]
    neighbours = load_neighbours(first, second)
    comparison = compare_groups(*groups, of_training, asked.target_loss, neighbours, asked.best_of)
    print_comparison(comparison, Console())
    if not asked.best_of:
        print_evaluations(pair_evaluations(*evaluated), Console())
    if all(made) and not asked.best_of:
        # Widths that differ were asked for.
        print_generation_ratios(sides, (*allowed, "quantization"), Console())
    if asked.served_tokens is not None:
        engine = " against ".join(dict.fromkeys(record.engine for records in made for record in records))
        folders = zip((first, second), sides, strict=True)
        lived = [Model(*side, earlier_stages(side[0].first, folder)) for folder, side in folders]
        losses = losses_of(comparison, asked.weights)
        lives = compare_lives(comparison, (lived[0], lived[1]), losses.target, (*allowed, "quantization"))
        print_lives(lives, losses, engine, asked.served_tokens, asked.price_per_hour, Console())
    if (study := study_of(first, second)) is not None:
        print(f"study of these runs: {study}")
    outcomes = judge(thresholds, comparison)
    print_outcomes(outcomes, Console())
    if junit is not None:
        write_junit(outcomes, comparison, junit)
    if summary is not None:
        append_summary(outcomes, comparison, summary)
    return any(outcome.state == "failed" for outcome in outcomes)
