"""Loss by position: whether a model's predictions improve with more context.

Documents follow each other, separated by the end-of-document token, as in training. Every sequence counts at all
positions, so that all positions are scored on comparable text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from efficientbench.basics.errors import ConfigError
from efficientbench.evaluation.long_context.lengths import choose_lengths
from efficientbench.evaluation.loss import joined, own_validation, read_text
from efficientbench.evaluation.scoring import Continuation, Scorer
from efficientbench.evaluation.task import Item, ItemResult, Options, Summary, prompt_hash

if TYPE_CHECKING:
    from efficientbench.generation.open_run import Opened

SEQUENCES = 64
"""The most sequences, unless `limit` is set."""


class PositionLoss:
    """Scores consecutive sequences of the longest length, cut from the text."""

    name = "position_loss"

    def __init__(self, run: Opened, options: Options) -> None:
        """Read the text, and cut it into sequences.

        Raises:
            ConfigError: the text is missing, or is shorter than a sequence.
            DataError: the text cannot be read.
        """
        self.run, self.budget, self.trained = run, options.batch_tokens, run.config.training.seq_len
        text = own_validation(options.folder) if options.text is None else read_text(options.text, run, None)
        end = run.tokenizer.eod_id
        tokens = np.concatenate([[end], joined(text.documents, end)]).astype("<i8")
        self.length = choose_lengths(run.config, options.lengths)[-1]
        count = min(len(tokens) // self.length, options.limit or SEQUENCES)
        if count == 0:
            raise ConfigError(
                f"{self.name}: {text.source} has {len(tokens):,} tokens, and a sequence {self.length:,}: give a longer "
                "text by --text, or shorter sequences by --lengths"
            )
        self.sequences = {
            f"sequence/{number}": tokens[number * self.length : (number + 1) * self.length] for number in range(count)
        }
        self.bounds = bounds(self.length, self.trained)
        self.settings: Mapping[str, Any] = {
            "length": self.length,
            "sequences": count,
            "ends": [end for _, end in self.bounds],
            "text_sha256": prompt_hash(tokens[: count * self.length].tobytes()),
            "text": text.source,
        }

    def items(self) -> Sequence[Item]:
        """Return an item for each sequence."""
        return [Item(name) for name in self.sequences]

    def score(self, items: Sequence[Item]) -> Iterator[list[ItemResult]]:
        """Yield the sequences' results, batch after batch."""
        sequences = [self.sequences[item.name] for item in items]
        scorer = Scorer(self.run.model, self.run.config.model.position.longest, self.budget)
        for part in scorer.score([[Continuation(each.tolist(), 1)] for each in sequences]):
            yield [self._result(items[at].name, sequences[at], scored.losses) for at, [scored] in part]

    def _result(self, name: str, sequence: np.ndarray, losses: np.ndarray) -> ItemResult:
        # The first token has no context, and no loss.
        means = [float(losses[first - 1 : end - 1].mean()) for first, end in self.bounds]
        details = {"losses_by_position": means}
        return ItemResult(name, prompt_hash(sequence.tobytes()), None, None, (float(losses.mean()),), details)

    def summary(self, results: Mapping[str, ItemResult]) -> Summary:
        """Return the mean loss of all positions, of the range that ends at the trained length, and of each range."""
        means = np.array([result.details["losses_by_position"] for result in results.values()])
        losses, errors = means.mean(axis=0), np.full(len(self.bounds), np.nan)
        if len(means) > 1:
            errors = means.std(axis=0, ddof=1) / len(means) ** 0.5
        ranges = [
            {
                "first": first,
                "end": end,
                "loss": float(loss),
                "standard_error": None if np.isnan(error) else float(error),
            }
            for (first, end), loss, error in zip(self.bounds, losses, errors, strict=True)
        ]
        ending = {end: float(loss) for (_, end), loss in zip(self.bounds, losses, strict=True)}
        at_trained = ending.get(self.trained)
        widths = [end - first for first, end in self.bounds]
        figures = {
            "loss": float(np.average(losses, weights=widths)),
            "loss_at_trained_length": at_trained,
        }
        reasons = {}
        if at_trained is None:
            reasons["loss_at_trained_length"] = f"no sequence has the trained length, {self.trained:,} tokens"
        return Summary(figures, reasons, {"trained_tokens": self.trained, "ranges": ranges})


def bounds(length: int, trained: int) -> list[tuple[int, int]]:
    """Return ranges of positions (first, end), from 1 to `length`, each without its end.

    Each range ends at √2 times the previous end; one ends at the trained length, unless the sequence is shorter.
    """
    steps = range(-2 * trained.bit_length(), 2 * length.bit_length())
    inside = {end for step in steps if 1 < (end := round(trained * 2 ** (step / 2))) < length}
    ends = sorted({1, *inside, length})
    return list(zip(ends, ends[1:], strict=False))
