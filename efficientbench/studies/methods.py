"""The parts of a study's page below its answer: methods, noise, every run, and what is assumed."""

from __future__ import annotations

from efficientbench.metrics.records.figure import count
from efficientbench.metrics.report.table import ABSENT, Table
from efficientbench.studies.answer import Answer, Findings
from efficientbench.studies.cautions import MATCHED
from efficientbench.studies.rates import FACTOR
from efficientbench.studies.words import Part, nats, numbers, percent, signed


def matching(answer: Answer) -> Part:
    """Return the widths that matching found, and what is left."""
    rows = [
        (run, f"{each.before:,}", f"{each.width:,}", percent(each.left, "+.2f"))
        for run, each in answer.matching.items()
    ]
    what = MATCHED.get(answer.section.match, "")
    lines = (f"The feed-forward width of each variant is solved for {answer.section.baseline}'s {what}.",)
    table = Table(("run", "width before", "width", "left"), rows)
    return Part("matching", "What was matched, and what is left", lines if rows else (), table)


def differences(found: Findings) -> Part:
    """Return each difference beside its fitted line, and where lines cross."""
    baseline = found.verdict.standings[0].variant
    rows = [
        (
            each.variant,
            each.cell.size,
            count(each.cell.tokens),
            str(each.seeds),
            signed(each.measured) + ("" if each.margin is None else f" ±{each.margin:.3f}"),
            signed(each.fitted),
        )
        for each in found.differences
    ]
    notes = [
        f"The lines of {' and '.join(each.variants)} cross at {count(each.parameters)}, "
        f"{'within the ladder' if each.within_ladder else 'beyond the ladder, before the target'}."
        for each in found.crossings
    ]
    header = ("variant", "size", "tokens", "seeds", f"minus {baseline}, nats", "fitted")
    note = "±: 95 %, from the noise between seeds of all cells together."
    return Part("differences", "Differences by cell", (), Table(header, rows, (0, 1), notes=(note, *notes)))


def rates(answer: Answer) -> Part:
    """Return the losses of each search."""
    rows = [
        (run, ", ".join(f"{rate:.3g}: {'diverged' if loss is None else f'{loss:.3f}'}" for rate, loss in tried.items()))
        for run, tried in answer.searches.items()
        if tried
    ]
    if not rows:
        told = "No rate has been searched yet." if answer.section.search_sizes else "The rates were given."
        return Part("rates", "Learning rates", (told,))
    slope = "" if answer.slope is None else f" Carried up by one slope for all variants, {answer.slope:.3f} per ln N."
    line = f"Rates lie a factor of {FACTOR:g} apart; each is the vertex of a parabola through three.{slope}"
    return Part("rates", "Learning rates", (line,), Table(("run", "rate: loss"), rows, (0, 1)))


def spread(found: Findings) -> Part:
    """Return the noise between seeds."""
    rows = [
        (
            each.size,
            nats(each.loss),
            nats(each.difference),
            ABSENT if each.of_trunk is None else percent(each.of_trunk),
        )
        for each in found.noise
    ]
    header = ("size", "sd of a loss between seeds", "sd of a difference between seeds", "its variance from the trunk")
    return Part("spread", "Noise", (), Table(header, rows))


def law(found: Findings) -> Part:
    """Return the fitted law, its slope and its outliers."""
    lines = []
    if found.law is not None:
        e, a, b, alpha, beta = found.law
        lines.append(f"Of the variants' mean: L = {e:.3f} + {a:.4g} / N^{alpha:.3f} + {b:.4g} / D^{beta:.3f}, nats.")
    source = "" if found.law is not None else " (the published law's)"
    lines.append(f"-dL / d ln C at the target{source}: {found.verdict.slope:.3f} nats.")
    if found.outliers:
        lines.append(f"Left out of the law, in the differences all the same: {'; '.join(found.outliers)}.")
    return Part("law", "The law", tuple(lines))


def runs(answer: Answer) -> Part:
    """Return every run."""
    rows = [
        (
            run.variant,
            run.cell.size,
            count(run.cell.tokens),
            str(run.seed),
            ABSENT if run.learning_rate is None else f"{run.learning_rate:.3g}",
            ABSENT if run.loss is None else f"{run.loss:.4f}",
            run.state if run.reason is None else f"{run.state}: {run.reason}",
            run.folder,
        )
        for run in answer.runs
    ]
    header = ("variant", "size", "tokens", "seed", "learning rate", "loss", "state", "folder")
    return Part("runs", "Every run", (), Table(header, rows, (0, 1, 6, 7)))


def prior(answer: Answer, found: Findings) -> Part:
    """Return the priors, and what the answer takes for granted."""
    believed = found.prior
    e, a, b = believed.effects
    exponents = "; ".join(f"{alpha:g}, {beta:g}" for alpha, beta in believed.exponents)
    return Part(
        "priors",
        "What is assumed",
        (
            f"Effects on E, A and B: normal, sd {e:g}, {a:g} and {b:g} nats times {numbers(believed.scales)}.",
            "Deviations from the law are as uneven between variants as this ladder shows."
            if believed.unevenness
            else "All variants deviate evenly from the law.",
            f"Misfit of a size: half-normal, {believed.misfit:g} nats. Exponents alpha, beta: {exponents}.",
            f"Noise of a run: {believed.noise[0]:.2g} to {believed.noise[-1]:.2g} nats; of a trunk, in its variance: "
            f"{numbers(believed.trunk_ratios)} times."
            if answer.section.trunks
            else f"Noise of a run: {believed.noise[0]:.2g} to {believed.noise[-1]:.2g} nats.",
            "Learning rates within 5 % of the best: an error of 15 %, and more at larger sizes, lowers the coverage of "
            "a 95 % interval to 73 %.",
            "Differences that grow with size faster than in the ladder are missed.",
            f"Edition {answer.edition} of the fit.",
        ),
    )
