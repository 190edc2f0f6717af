"""Which factor on the embedding suits all rows of the positional suite: measured by held-out loss.

    python tests/benchmarks/embedding_scale.py [--results FILE] [--write]

Trains every row at two widths with each factor, each of three learning rates and three seeds. A row counts with the
learning rate of its lowest mean loss over seeds; the factors are then ranked in each row. What is trained is kept in
the results file, line by line: a call after an interruption goes on, and a second process may train the other half
(`--part 0/2` and `--part 1/2`).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from support.measured import Figure, options, write_content
from support.single_rank import world_of_one_rank

from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokenizing.corpus import Corpus
from efficientbench.devices.cpu import CPU
from efficientbench.running.corpora import prepare_corpora

ROWS = ("rope", "absolute", "learnable_absolute", "relative", "none")
FACTORS = ("1", "sqrt_hidden_size")
NAMES = {"1": "1", "sqrt_hidden_size": "√H"}
RATES = {64: (3e-3, 9e-3, 27e-3), 192: (1e-3, 3e-3, 9e-3)}
"""Learning rates by width: what a model bears falls with its width."""
WIDTHS = tuple(RATES)
SEEDS = (1, 2, 3)
STEPS = 120
LAYERS, HEAD_DIM, SEQUENCE, BATCH, VALIDATION_TOKENS = 2, 16, 128, 4, 16_384
FULL_WIDTH, FULL_FFN = 1536, 8960
"""Of the size 1.5B, whose proportions the narrow models have."""


@dataclass(frozen=True)
class Cell:
    """One model to train."""

    seed: int
    width: int
    rate: float
    row: str
    factor: str

    def config(self) -> RunConfig:
        """Return its configuration; initial weights are wider in the proportion in which the model is narrower."""
        return resolve(
            f"{self.row}_1.5B",
            smoke=True,
            overrides=[
                f"model.layers={LAYERS}",
                f"model.hidden_size={self.width}",
                f"model.heads={self.width // HEAD_DIM}",
                f"model.head_dim={HEAD_DIM}",
                f"model.ffn_hidden_size={16 * round(self.width * FULL_FFN / FULL_WIDTH / 16)}",
                f"model.init_std={0.02 * math.sqrt(FULL_WIDTH / self.width)}",
                f"model.embedding_multiplier={self.factor}",
                f"training.seq_len={SEQUENCE}",
                f"training.micro_batch_size={BATCH}",
                f"training.global_batch_size={BATCH}",
                f"training.steps={STEPS}",
                f"training.learning_rate={self.rate}",
                f"training.min_learning_rate={self.rate / 10}",
                f"training.seed={self.seed}",
                "training.validate_every_tokens=0",
                f"training.validation_tokens={VALIDATION_TOKENS}",
                "data.split=[90,10,0]",
            ],
        )


Losses = dict[Cell, float]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--results", type=Path, default=Path("output/embedding_scale.jsonl"))
    parser.add_argument("--part", default="0/1", help="which of how many parts of the models this process trains")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in cells() if cell not in read(arguments.results)][part::parts]
    if missing:
        train_all(missing, arguments.results)
    losses = read(arguments.results)
    if any(cell not in losses for cell in cells()):
        print(f"{len(losses)} of {len(list(cells()))} models are trained")
        return
    show(losses, arguments)


def cells() -> Iterator[Cell]:
    """Yield all models, a whole table for each seed."""
    for seed, width in itertools.product(SEEDS, WIDTHS):
        for rate, row, factor in itertools.product(RATES[width], ROWS, FACTORS):
            yield Cell(seed, width, rate, row, factor)


def read(path: Path) -> Losses:
    """Return the losses of the models that are trained."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {Cell(**line["cell"]): line["loss"] for line in lines}


def train_all(missing: list[Cell], results: Path) -> None:
    torch.set_num_threads(1)
    [corpus] = prepare_corpora(missing[0].config())
    with world_of_one_rank() as device:
        for cell in missing:
            loss = held_out_loss(cell.config(), corpus, device)
            with results.open("a") as file:
                file.write(json.dumps({"cell": dataclasses.asdict(cell), "loss": loss}) + "\n")
            print(f"{cell}: {loss:.4f}", flush=True)


def held_out_loss(config: RunConfig, corpus: Corpus, device: torch.device) -> float:
    """Train a model in this process; return its loss on held-out text at the end, nats."""
    from efficientbench.model.gpt import build_stages
    from efficientbench.training.data.batches import Batches, Vocabulary
    from efficientbench.training.events import Event, ValidationEnded
    from efficientbench.training.trainer import Trainer
    from efficientbench.training.update.optimizer import build_optimizer, wrap_data_parallel

    found: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, ValidationEnded):
            found.append(event.loss)

    vocabulary = Vocabulary(corpus.vocab_size, corpus.eod_id, {"fingerprint": corpus.fingerprint})
    assert config.training.steps is not None
    batches = Batches(config, config.training.steps, [corpus.prefix], vocabulary, device)
    stages = [wrap_data_parallel(stage, config) for stage in build_stages(config, device)]
    trainer = Trainer(config, config.training.steps, stages, build_optimizer(stages, config), batches, [listen])
    trainer.train(lambda: False)
    return found[-1]


@dataclass(frozen=True)
class Best:
    """A row at one width with one factor, at the learning rate that suits it best."""

    rate: float
    losses: list[float]
    """By seed."""

    @classmethod
    def of(cls, losses: Mapping[Cell, float], width: int, row: str, factor: str) -> Best:
        found = [cls(rate, [losses[Cell(seed, width, rate, row, factor)] for seed in SEEDS]) for rate in RATES[width]]
        return min(found, key=lambda best: best.mean)

    @property
    def mean(self) -> float:
        return statistics.mean(self.losses)

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {statistics.stdev(self.losses):.3f} ({self.rate:g})"


def show(losses: Losses, arguments: argparse.Namespace) -> None:
    """Print the table and the mean ranks; with `--write`, write them for the docs."""
    table: list[dict[str, str]] = []
    ranks: dict[tuple[int, str], list[int]] = {key: [] for key in itertools.product(WIDTHS, FACTORS)}
    for width, row in itertools.product(WIDTHS, ROWS):
        best = {factor: Best.of(losses, width, row, factor) for factor in FACTORS}
        order = sorted(FACTORS, key=lambda factor: best[factor].mean)
        for factor in FACTORS:
            ranks[width, factor].append(1 + order.index(factor))
        titled = {f"factor {NAMES[factor]}": str(best[factor]) for factor in FACTORS}
        table.append({"width": str(width), "row": row, **titled, "better": NAMES[order[0]]})
    figures = {
        f"rank_{factor}_{width}": Figure(
            f"factor {NAMES[factor]} at width {width}: mean rank",
            statistics.mean(ranks[width, factor]),
            n=len(ROWS),
            n_of="rows",
        )
        for width, factor in itertools.product(WIDTHS, FACTORS)
    }
    firsts = {min(FACTORS, key=lambda factor: statistics.mean(ranks[width, factor])) for width in WIDTHS}
    agree = "the widths agree" if len(firsts) == 1 else "the widths disagree"
    print(*table, *figures.values(), agree, sep="\n")
    if arguments.write:
        content = {
            "conditions": f"{LAYERS} layers of the size 1.5B's proportions at widths {WIDTHS[0]} and {WIDTHS[1]}, "
            f"float32, {STEPS} steps of {BATCH} × {SEQUENCE} tokens of the sample text, {len(SEEDS)} seeds, best of "
            f"{len(RATES[WIDTHS[0]])} learning rates; held-out loss in nats, mean ± standard deviation over seeds "
            "(learning rate)",
            "note": agree.capitalize(),
            "rows": table,
            "figures": {
                key: {"what": each.what, "value": each.value, "n": each.n, "n_of": each.n_of}
                for key, each in figures.items()
            },
        }
        write_content(__file__, CPU(), content)


if __name__ == "__main__":
    main()
