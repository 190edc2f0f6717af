"""Speed of the data on this machine.

Compares batches from the mapped files with the model that consumes them, and reading one document of 1,000,000 with
reading one of 1,000.

    python3 tests/benchmarks/data_speed.py [--names mqa_0.5B …] [--rounds 100] [--threads 2] [--write]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from support.measured import Figure, add_write, write_measured
from support.pairs import write_equal_documents
from support.reading_speed import reading_and_training_s

from efficientbench.config.load import resolve
from efficientbench.data_tools.corpus import prepare_corpus
from efficientbench.data_tools.indexed_documents import IndexedDocuments
from efficientbench.devices.cpu import CPU

DOCUMENTS = (1_000, 1_000_000)
DOCUMENT_TOKENS = 100
OTHER_MEMORY_BYTES = 256 << 20


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="*", default=["mqa_0.5B", "mla_0.5B", "gqa_1.5B"], help="smoke runs")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    add_write(parser)
    arguments = parser.parse_args()
    CPU().prepare(0)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(arguments.threads)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names:
            figures[name] = compare_with_training(name, arguments.rounds, Path(folder))
        figures |= compare_sizes(Path(folder))
    if arguments.write:
        write_measured(__file__, CPU(), figures, "mapped files, batches and training steps in turn")


def compare_with_training(name: str, rounds: int, folder: Path) -> Figure:
    """Batches of a smoke run's own text and length, against its training steps."""
    config = resolve(name, smoke=True, overrides=[f"data.cache={folder}"])
    corpus = prepare_corpus(None, None, folder, config.data.trained_vocab_size)
    pairs = reading_and_training_s(config, corpus.prefix, rounds)
    tokens = config.training.global_batch_size * config.training.seq_len
    reading_s, training_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    low, middle, high = interval([training / reading for reading, training in pairs])
    print(
        f"{name} (smoke): batches {tokens / reading_s:,.0f} tokens/s, training {tokens / training_s:,.0f} tokens/s: "
        f"{middle:.0f} times faster (95 % interval {low:.0f} to {high:.0f}, {rounds} rounds)"
    )
    what = f"batches, times faster than the training of {name} (smoke)"
    return Figure(what, middle, interval=(low, high), n=rounds, n_of="rounds")


def compare_sizes(folder: Path) -> dict[str, Figure]:
    """Random documents of a small and a large pair in turn, by our reader and by megatron's."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    prefixes = [folder / str(documents) for documents in DOCUMENTS]
    for prefix, documents in zip(prefixes, DOCUMENTS, strict=True):
        write_equal_documents(prefix, documents, DOCUMENT_TOKENS)
    figures = {}
    readers: dict[str, list[Callable[[int], object]]] = {
        "data_tools": [IndexedDocuments(prefix).__getitem__ for prefix in prefixes],
        "megatron": [IndexedDataset(str(prefix)).get for prefix in prefixes],
    }
    for reader, (small, large) in readers.items():
        # Once over the large pair, so that no page is read for the first time: what remains is the reading itself.
        for number in range(0, DOCUMENTS[1], 10):
            large(number)
        for between, rounds, reads in (("nothing else", 200, 100), ("a training step's worth of memory", 300, 1)):
            times_s = in_turn(small, large, rounds, reads)
            low, middle, high = interval([large_s / small_s for small_s, large_s in times_s])
            medians = " and ".join(f"{statistics.median(each) * 1e6:.2f} µs" for each in zip(*times_s, strict=True))
            print(
                f"{reader}: one document of {DOCUMENTS[0]:,} and of {DOCUMENTS[1]:,}, {between} touched in between: "
                f"{medians}, ratio {middle:.3f} (95 % interval {low:.3f} to {high:.3f}, {rounds} rounds of {reads})"
            )
            what = f"{reader}: reading one document of {DOCUMENTS[1]:,} over one of {DOCUMENTS[0]:,}, after {between}"
            figures[f"{reader}_{reads}"] = Figure(what, middle, "", (low, high), n=rounds, n_of="pairs")
    return figures


def in_turn(
    small: Callable[[int], object], large: Callable[[int], object], rounds: int, reads: int
) -> list[tuple[float, float]]:
    """Mean times of `reads` random reads of each, s, in turn.

    A single read comes after other memory has gone through the processor's caches, as it does between two steps of
    training; more of them in a row find the small pair in the caches whole.
    """
    chosen = random.Random(0)
    other_memory = np.ones(OTHER_MEMORY_BYTES // 8)
    pairs = []
    for _ in range(rounds):
        times = []
        for read, documents in zip((small, large), DOCUMENTS, strict=True):
            numbers = [chosen.randrange(documents) for _ in range(reads)]
            if reads == 1:
                other_memory += 1
            begin_s = time.perf_counter()
            for number in numbers:
                read(number)
            times.append((time.perf_counter() - begin_s) / reads)
        pairs.append((times[0], times[1]))
    return pairs


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Median of paired ratios, which a read that was interrupted does not move, and its 95 % bootstrap interval."""
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], statistics.median(ratios), medians[1949]


if __name__ == "__main__":
    main()
