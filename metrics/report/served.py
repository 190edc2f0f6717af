"""Show the use of a model on the report card: time to first token, speed and energy of answers.

`generate --measure` has measured it, for several combinations of prompt, batch and new tokens. The card shows one that
all measured models have, under the same conditions, so that its rows compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from efficientbench.metrics.analysis.generation_sides import GENERATION_CONDITIONS
from efficientbench.metrics.records.generation import GenerationRecord, GenerationRow
from efficientbench.metrics.report.generation import shown_cell, titled
from efficientbench.metrics.report.table import ABSENT

SHOWN = ("ttft_s_p50", "decode_tokens_per_s", "decode_energy_j_per_token")
"""Of the figures of a combination, those in the card."""

Combination = tuple[int, int, int]
"""Tokens of the prompt, batch, new tokens."""


@dataclass(frozen=True)
class Served:
    """The cells of generation in a report card."""

    rows: Mapping[str, GenerationRow] = field(default_factory=dict)
    """Run → what was measured of the combination; runs without it have n/a."""
    notes: tuple[str, ...] = ()
    """Which combination it is, and why cells are n/a."""
    header: tuple[str, ...] = ()
    """Titles of the columns; none where nothing was measured."""

    @classmethod
    def of(cls, generations: Mapping[str, GenerationRecord | None]) -> Served:
        """Choose among the combinations that were measured of every model: the smallest batch, then the longest prompt.

        Args:
            generations: run → what was measured of its model; None: nothing.
        """
        measured = {run: _by_combination(each) for run, each in generations.items() if each is not None}
        if not measured:
            return cls(notes=("No generation was measured: efficientbench generate RUN --measure does so.",))
        header = tuple(titled(name)[0] for name in SHOWN)
        without = [run for run in generations if run not in measured]
        notes = [f"{ABSENT} {', '.join(header)} of {', '.join(without)}: not measured."] if without else []
        common = set.intersection(*map(set, measured.values()))
        why = None if common else "no combination of prompt, batch and new tokens was measured of all of them"
        for condition, read in GENERATION_CONDITIONS.items():
            texts = {run: read(each) for run, each in generations.items() if each is not None}
            if len(set(texts.values())) > 1:
                listed = ", ".join(f"{run} {text}" for run, text in texts.items())
                why = f"measured under different conditions, {condition}: {listed}"
        if why is not None:
            return cls(notes=(*notes, f"{ABSENT} {', '.join(header)} of {', '.join(measured)}: {why}."), header=header)
        chosen = min(common, key=lambda each: (each[1], -each[0], -each[2]))
        prompt, batch, new = chosen
        notes.insert(0, f"Generation: prompts of {prompt:,} tokens, batch {batch:,}, {new:,} new tokens.")
        rows = {run: found[chosen] for run, found in measured.items()}
        for run, row in rows.items():
            for name, title in zip(SHOWN, header, strict=True):
                if row.value(name) is None:
                    notes.append(f"{ABSENT} {title} of {run}: {row.why(name)}")
        return cls(rows, tuple(notes), header)

    def cells(self, run: str) -> list[str]:
        """Return a run's cells below `header`."""
        row = self.rows.get(run)
        return [ABSENT] * len(self.header) if row is None else [shown_cell(name, row) for name in SHOWN]


def _by_combination(generation: GenerationRecord) -> dict[Combination, GenerationRow]:
    """Return the rows that were measured."""
    return {(row.prompt_tokens, row.batch, row.max_new_tokens): row for row in generation.rows if row.failure is None}
