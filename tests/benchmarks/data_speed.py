"""Speed of the data on this machine.

Compares batches from the mapped files with the model that consumes them, and reading one document of 1,000,000 with
reading one of 1,000.

    python3 tests/benchmarks/data_speed.py [--names mqa_0.5B …] [--rounds 100] [--threads 2] [--write]
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from support.measured import Figure, options, report, seconds
from support.pairs import write_equal_documents
from support.reading_speed import reading_and_training_s

from efficientbench.config.load import resolve
from efficientbench.data_tools.tokenizing.corpus import prepare_corpus
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.devices.cpu import CPU

DOCUMENTS = (1_000, 1_000_000)
DOCUMENT_TOKENS = 100
OTHER_MEMORY_BYTES = 256 << 20


def main() -> None:
    """Print both comparisons."""
    parser = options(__doc__)
    parser.add_argument("--names", nargs="*", default=["mqa_0.5B", "mla_0.5B", "gqa_1.5B"], help="smoke runs")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    CPU().prepare(0)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(arguments.threads)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder:
        figures = {name: compare_with_training(name, arguments.rounds, Path(folder)) for name in arguments.names}
        figures |= compare_sizes(Path(folder))
    report(__file__, arguments, figures, "mapped files, batches and training steps in turn")


def compare_with_training(name: str, rounds: int, folder: Path) -> Figure:
    """Batches of a smoke run's own text and length, against its training steps."""
    config = resolve(name, smoke=True, overrides=[f"data.cache={folder}"])
    corpus = prepare_corpus(None, None, folder, config.data.trained_vocab_size)
    pairs = reading_and_training_s(config, corpus.prefix, rounds)
    what = f"batches, times faster than the training of {name} (smoke)"
    # An interrupted read does not move the median.
    return Figure.with_bootstrap(what, [training / reading for reading, training in pairs], statistics.median)


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
            what = f"{reader}: reading one document of {DOCUMENTS[1]:,} over one of {DOCUMENTS[0]:,}, after {between}"
            ratios = ratios_in_turn(small, large, rounds, reads)
            figures[f"{reader}_{reads}"] = Figure.with_bootstrap(what, ratios, statistics.median, n_of="pairs")
    return figures


def ratios_in_turn(
    small: Callable[[int], object], large: Callable[[int], object], rounds: int, reads: int
) -> list[float]:
    """Return the time of `reads` random reads of the large pair over that of the small one, in turn.

    A single read comes after other memory has gone through the processor's caches, as it does between two steps of
    training; more of them in a row find the small pair in the caches whole.
    """
    chosen = random.Random(0)
    other_memory = np.ones(OTHER_MEMORY_BYTES // 8)
    times_s: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for read, documents, times in zip((small, large), DOCUMENTS, times_s, strict=True):
            numbers = [chosen.randrange(documents) for _ in range(reads)]
            if reads == 1:
                other_memory += 1
            # The deque runs the reads in C and drops their results.
            times.append(seconds(partial(deque, map(read, numbers), maxlen=0)))
    return [large_s / small_s for small_s, large_s in zip(*times_s, strict=True)]


if __name__ == "__main__":
    main()
