"""What Muon costs beside AdamW in memory, time and energy, and what it gains: the loss after the same tokens.

    python tests/benchmarks/muon.py [--seeds 5] [--steps 200] [--rounds 20] [--results FILE] [--write]

Trains a narrow GQA on the sample text with each optimizer, each of three learning rates and each seed, in one process.
An optimizer counts with the learning rate of its lowest mean loss over seeds; losses of one seed are a pair, since it
decides initial weights and the order of the text. What is trained is kept in the results file, line by line: a call
after an interruption goes on. Energy takes a meter of the processor (RAPL).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import random
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from embedding_scale import held_out_loss
from support.measured import Figure, options, report, seconds
from support.single_rank import world_of_one_rank
from support.training_steps import Step, our_trainer, random_tokens

from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokenizing.corpus import Corpus
from efficientbench.metrics import EfficiencyMonitor, merge
from efficientbench.metrics.formulas.student import mean_confidence_interval
from efficientbench.metrics.monitoring.sensor_registry import device_sensors
from efficientbench.running.corpora import prepare_corpora

if TYPE_CHECKING:
    from efficientbench.training.trainer import Trainer

NAMES = {"adamw": "AdamW", "muon": "Muon"}
RATES = {"adamw": (1e-3, 3e-3, 9e-3), "muon": (1e-2, 3e-2, 9e-2)}
"""Learning rates of the layers' matrices by optimizer."""
OTHERS_RATE = 3e-3
"""Learning rate by AdamW of all that Muon does not update."""
BLOCK_STEPS = 10
"""Steps of a block whose energy is read: many times what lies between two updates of a counter."""
WIDTH, LAYERS, HEAD_DIM, FFN, SEQUENCE, BATCH, VALIDATION_TOKENS = 192, 4, 32, 576, 128, 4, 16_384


@dataclass(frozen=True)
class Cell:
    """One model to train."""

    optimizer: str
    rate: float
    seed: int
    steps: int

    def config(self) -> RunConfig:
        """Return its configuration; AdamW has one rate for everything."""
        rate = self.rate if self.optimizer == "adamw" else OTHERS_RATE
        return resolve(
            "gqa_1.5B",
            smoke=True,
            overrides=[
                f"training.optimizer={self.optimizer}",
                f"training.matrix_learning_rate={self.rate}",
                f"training.learning_rate={rate}",
                f"training.min_learning_rate={rate / 10}",
                # Else the comparison would be of decays too: each is in proportion to its optimizer's rate.
                "training.weight_decay=0",
                f"training.seed={self.seed}",
                f"training.steps={self.steps}",
                f"model.layers={LAYERS}",
                f"model.hidden_size={WIDTH}",
                f"model.heads={WIDTH // HEAD_DIM}",
                f"model.head_dim={HEAD_DIM}",
                f"model.ffn_hidden_size={FFN}",
                f"training.seq_len={SEQUENCE}",
                f"training.micro_batch_size={BATCH}",
                f"training.global_batch_size={BATCH}",
                "training.validate_every_tokens=0",
                f"training.validation_tokens={VALIDATION_TOKENS}",
                "data.split=[90,10,0]",
                "parallel.distributed_optimizer=false",
            ],
        )


Losses = dict[Cell, float]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="models of each optimizer and learning rate")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps of each model")
    parser.add_argument("--rounds", type=int, default=20, help="timed steps of each optimizer")
    parser.add_argument("--threads", type=int, default=1, help="threads that torch computes with")
    parser.add_argument("--results", type=Path, default=Path("output/muon.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    with world_of_one_rank() as device:
        figures, unmetered = costs(arguments.steps, arguments.rounds, device)
        losses = trained(arguments, device)
    figures |= gains(losses, range(1, arguments.seeds + 1), arguments.steps)
    conditions = (
        f"GQA of {LAYERS} layers, width {WIDTH}, float32, one rank, {arguments.threads} threads; {arguments.steps} "
        f"steps of {BATCH} × {SEQUENCE} tokens of the sample text; no weight decay; paired seeds; rates of "
        f"AdamW {', '.join(f'{rate:g}' for rate in RATES['adamw'])}, of Muon "
        f"{', '.join(f'{rate:g}' for rate in RATES['muon'])} with {OTHERS_RATE:g} for what AdamW updates beside "
        f"it{unmetered}"
    )
    report(__file__, arguments, figures, conditions)


def costs(steps: int, rounds: int, device: torch.device) -> tuple[dict[str, Figure], str]:
    """Measure the optimizer's states, and time and energy of a step in rounds of both, in random order.

    Returns:
        The figures, and for the conditions why there is no energy; empty where there is one.
    """
    sides: dict[str, Step] = {}
    states: dict[str, float] = {}
    for name in NAMES:
        config = Cell(name, RATES[name][1], 1, steps).config()
        trainer = our_trainer(config, device, random_tokens(config, device))
        sides[name] = partial(trainer.train_step, 1)
        sides[name]()
        states[name] = state_bytes(trainer)
    times_s: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(3 + rounds):
        for name in random.sample(list(NAMES), 2):
            times_s[name].append(seconds(sides[name]))
    pairs = list(zip(times_s["muon"][3:], times_s["adamw"][3:], strict=True))
    figures = {
        f"{name} states": Figure(f"{title}: optimizer states for each parameter", states[name], "B")
        for name, title in NAMES.items()
    }
    ratios, more_ms = [muon / adamw for muon, adamw in pairs], [(muon - adamw) * 1e3 for muon, adamw in pairs]
    tokens = BATCH * SEQUENCE
    joules, unmetered = energies(sides, rounds)
    figures |= {
        "time": Figure.with_bootstrap(
            f"time of a training step of {tokens} tokens, Muon over AdamW", ratios, statistics.geometric_mean
        ),
        "added": Figure.with_bootstrap(
            "time that Muon adds to a step, however many tokens it has", more_ms, statistics.median, "ms"
        ),
    }
    return figures | joules, unmetered


def energies(sides: Mapping[str, Step], rounds: int) -> tuple[dict[str, Figure], str]:
    """Return the energy of a trained token with each optimizer, in blocks of both in random order, or why not."""
    tokens = BATCH * SEQUENCE
    joules: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(rounds):
        for name in random.sample(list(NAMES), 2):
            with EfficiencyMonitor(device_sensors("cpu")) as monitor:
                for _ in range(BLOCK_STEPS):
                    with monitor.step(tokens):
                        sides[name]()
            run = merge([monitor.finish()])
            if run.energy_j is None:
                return {}, f"; energy n/a: {run.unavailable['energy_j']}"
            joules[name].append(run.energy_j / run.tokens)
    figures = {
        f"{name} energy": Figure.with_bootstrap(
            f"{title}: energy of a token", joules[name], statistics.fmean, "J", n_of="blocks"
        )
        for name, title in NAMES.items()
    }
    ratios = [muon / adamw for muon, adamw in zip(joules["muon"], joules["adamw"], strict=True)]
    what = f"energy of a training step of {tokens} tokens, Muon over AdamW"
    figures["energy"] = Figure.with_bootstrap(what, ratios, statistics.geometric_mean)
    return figures, ""


def state_bytes(trainer: Trainer) -> float:
    """Return the bytes that the optimizer keeps for each parameter of the model, without the weights themselves."""
    kept = [
        value
        for part in trainer.optimizer.chained_optimizers
        for state in part.optimizer.state.values()
        for name, value in state.items()
        # AdamW's count of updates is one number a parameter.
        if name != "step"
    ]
    count = sum(parameter.numel() for parameter in trainer.stages[0].parameters())
    return sum(each.numel() * each.element_size() for each in kept) / count


def trained(arguments: argparse.Namespace, device: torch.device) -> Losses:
    """Train what the results file lacks, and return all losses."""
    path: Path = arguments.results
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    losses = {Cell(**line["cell"]): line["loss"] for line in lines}
    corpora: list[Corpus] = []
    for seed, name in itertools.product(range(1, arguments.seeds + 1), NAMES):
        for rate in RATES[name]:
            cell = Cell(name, rate, seed, arguments.steps)
            if cell in losses:
                continue
            corpora = corpora or prepare_corpora(cell.config())
            losses[cell] = held_out_loss(cell.config(), corpora[0], device)
            with path.open("a") as file:
                file.write(json.dumps({"cell": dataclasses.asdict(cell), "loss": losses[cell]}) + "\n")
            print(f"{cell}: {losses[cell]:.4f}", flush=True)
    return losses


def gains(losses: Losses, seeds: range, steps: int) -> dict[str, Figure]:
    """Return the loss of each optimizer at its best rate, and the difference by pairs of seeds."""
    best = {}
    figures = {}
    for name, title in NAMES.items():
        by_rate = {rate: [losses[Cell(name, rate, seed, steps)] for seed in seeds] for rate in RATES[name]}
        rate = min(by_rate, key=lambda rate: statistics.mean(by_rate[rate]))
        best[name] = by_rate[rate]
        for each, found in by_rate.items():
            mark = f", its best{_end(rate, RATES[name])}" if each == rate else ""
            what = f"{title} at {each:g}{mark}: held-out loss"
            figures[f"{name} {each:g}"] = _mean(what, found)
    pairs = [muon - adamw for muon, adamw in zip(best["muon"], best["adamw"], strict=True)]
    return figures | {"difference": _mean("loss of Muon minus AdamW's, each at its best rate", pairs)}


def _end(rate: float, tried: tuple[float, ...]) -> str:
    """Return what stands beside a best rate that is an end of those tried: a better one may lie beyond it."""
    return {min(tried): ", the lowest tried", max(tried): ", the highest tried"}.get(rate, "")


def _mean(what: str, values: list[float]) -> Figure:
    interval = mean_confidence_interval(values)
    return Figure(what, statistics.mean(values), "nats", interval, n=len(values), n_of="seeds")


if __name__ == "__main__":
    main()
