"""Batches: every layout draws the same samples in the same order, reads one ahead, and faster than models train."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from support.cells import write_tokens
from support.command_line import until
from support.configs import tiny
from support.ranks import Ranks
from support.reading_speed import reading_and_training_s

from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokenizing.corpus import prepare_corpus

STEPS = 25
WEIGHTS = (0.5, 0.3, 0.2)
LAYOUTS = {
    "TP 2": (2, ["parallel.tp=2"]),
    "PP 2": (2, ["parallel.pp=2"]),
    "DP 2": (2, ["parallel.dp=2"]),
    "TP 2 x PP 2": (4, ["parallel.tp=2", "parallel.pp=2"]),
    "PP 2 x DP 2": (4, ["parallel.pp=2", "parallel.dp=2"]),
    "DP 4": (4, ["parallel.dp=4"]),
}


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three corpora; no token of one occurs in another."""
    folder = tmp_path_factory.mktemp("blend")
    random = np.random.default_rng(0)
    for source in range(3):
        documents = [random.integers(40 * source + 1, 40 * source + 41, random.integers(5, 90)) for _ in range(300)]
        write_tokens(folder / str(source), documents)
    return [folder / str(source) for source in range(3)]


def blend(prefixes: list[Path], cache: Path, *overrides: str) -> RunConfig:
    path = ",".join(f"{weight},{prefix}" for weight, prefix in zip(WEIGHTS, prefixes, strict=True))
    return tiny("gqa_1.5B", f"data.path=[{path}]", f"data.cache={cache}", *overrides)


def drawn(config: RunConfig, prefixes: list[Path], steps: int) -> tuple[int, np.ndarray, np.ndarray]:
    """This rank's replica, the tokens that it trains on [steps, its sequences, S + 1], and the targets it validates."""
    import torch
    from megatron.core import parallel_state

    from efficientbench.training import groups
    from efficientbench.training.data.batch import Batch
    from efficientbench.training.data.batches import Batches
    from efficientbench.training.data.sample_index import Vocabulary

    def whole(batch: Batch) -> torch.Tensor:
        return torch.cat([batch.tokens, batch.labels[:, -1:]], dim=1)

    with groups.model_parallel(config.parallel, config.training.seed):
        batches = Batches(config, steps, prefixes, Vocabulary(131, 0, {"name": "tiny"}), torch.device("cpu"))
        training = [torch.cat([*map(whole, batches.training_step(step))]) for step in range(1, steps + 1)]
        validation = torch.cat([batch.labels[batch.weights == 1] for batch in batches.validation_step()])
        return parallel_state.get_data_parallel_rank(), torch.stack(training).numpy(), validation.numpy()


@pytest.fixture(scope="module")
def single(
    ranks: Callable[[int], Ranks], prefixes: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[np.ndarray, np.ndarray]:
    config = blend(prefixes, tmp_path_factory.mktemp("cache"))
    return ranks(1).call(drawn, config, prefixes, STEPS)[0][1:]


@pytest.mark.parametrize(
    "layout",
    [layout if size == 2 else pytest.param(layout, marks=pytest.mark.proof) for layout, (size, _) in LAYOUTS.items()],
)
def test_every_layout_draws_the_same_samples(
    layout: str,
    ranks: Callable[[int], Ranks],
    prefixes: list[Path],
    single: tuple[np.ndarray, np.ndarray],
    tmp_path: Path,
) -> None:
    size, overrides = LAYOUTS[layout]
    answers = ranks(size).call(drawn, blend(prefixes, tmp_path, *overrides), prefixes, STEPS)
    replicas = sorted({replica for replica, _, _ in answers})
    for part, (expected, axis) in enumerate(zip(single, (1, 0), strict=True), start=1):
        for replica in replicas:
            first, *others = [answer[part] for answer in answers if answer[0] == replica]
            assert all(np.array_equal(first, other) for other in others), "ranks of one replica read different samples"
        found = [next(answer[part] for answer in answers if answer[0] == replica) for replica in replicas]
        assert np.array_equal(np.concatenate(found, axis=axis), expected)


@pytest.mark.parametrize(
    "overrides",
    [
        ["training.seq_len=64", "training.micro_batch_size=1", "training.global_batch_size=1"],
        ["training.seq_len=5", "training.micro_batch_size=3", "training.global_batch_size=9", "training.seed=7"],
    ],
)
def test_every_length_batch_and_seed_validates_the_same_targets(
    overrides: list[str],
    ranks: Callable[[int], Ranks],
    prefixes: list[Path],
    single: tuple[np.ndarray, np.ndarray],
    tmp_path: Path,
) -> None:
    (answer,) = ranks(1).call(drawn, blend(prefixes, tmp_path, *overrides), prefixes, 1)
    assert np.array_equal(answer[2], single[1])


def test_no_validation_document_is_trained_on(
    ranks: Callable[[int], Ranks], prefixes: list[Path], single: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    # One epoch and more of every source.
    (answer,) = ranks(1).call(drawn, blend(prefixes, tmp_path), prefixes, 500)
    trained = answer[1].reshape(-1, answer[1].shape[-1])
    known = {tuple(window) for row in trained for window in np.lib.stride_tricks.sliding_window_view(row, 4).tolist()}
    validated = np.lib.stride_tricks.sliding_window_view(single[1], 4).tolist()
    assert np.mean([tuple(window) in known for window in validated]) < 0.1


def test_each_source_is_drawn_by_its_weight(single: tuple[np.ndarray, np.ndarray]) -> None:
    """By the samples themselves: each consists of one source's tokens, and none is drawn twice before all are."""
    samples = single[0].reshape(-1, single[0].shape[-1])
    sources = (samples.max(axis=1) - 1) // 40
    assert np.array_equal(sources, (samples.min(axis=1) - 1) // 40), "a sample mixes two sources"
    for seen in (40, len(samples)):
        shares = np.bincount(sources[:seen], minlength=3) / seen
        assert shares == pytest.approx(WEIGHTS, abs=1 / seen + 1e-9)
    assert len(np.unique(samples, axis=0)) == len(samples)


def test_a_small_blend_with_an_extreme_weight_can_be_drawn(
    ranks: Callable[[int], Ranks], prefixes: list[Path], tmp_path: Path
) -> None:
    """Megatron's own margin would hold 9 samples of the first source ready, just one epoch of it, and draw 10."""
    most = tmp_path / "most"
    write_tokens(most, [np.arange(9 * 16 + 1) % 39 + first for first in (1, 2)])
    path = f"[0.97,{most}," + ",".join(f"0.01,{prefix}" for prefix in prefixes) + "]"
    overrides = [f"data.path={path}", f"data.cache={tmp_path}", "data.split=[1,1,0]"]
    _, training, validation = ranks(1).call(drawn, tiny("gqa_1.5B", *overrides), [most, *prefixes], 1)[0]
    assert training.shape == (1, 8, 17)
    assert len(validation) > 0


SIZE, GLOBAL, READ_STEPS = 2, 4, 3


def reads(config: RunConfig, prefix: Path) -> tuple[list[list[int]], bool]:
    """The samples read by the time that each micro-batch is in use; whether each was read once."""
    import torch

    from efficientbench.training import groups
    from efficientbench.training.data.batches import Batches, Samples
    from efficientbench.training.data.sample_index import Vocabulary

    class Watched:
        def __init__(self, samples: Samples) -> None:
            self.samples, self.read = samples, list[int]()

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            self.read.append(index)
            sample: dict[str, torch.Tensor] = self.samples[index]
            return sample

    seen = []
    with groups.model_parallel(config.parallel, config.training.seed):
        batches = Batches(config, READ_STEPS, [prefix], Vocabulary(131, 0, {"name": "tiny"}), torch.device("cpu"))
        batches.training = watched = Watched(batches.training)
        for step in range(1, READ_STEPS + 1):
            for index, batch in enumerate(batches.training_step(step)):
                used = (step - 1) * GLOBAL + (index + 1) * SIZE
                ahead = min(used + SIZE, READ_STEPS * GLOBAL)
                until(lambda ahead=ahead: len(watched.read) >= ahead, f"{ahead} samples read", 30)
                expected = torch.stack([watched.samples[sample]["tokens"] for sample in range(used - SIZE, used)])
                assert torch.equal(batch.tokens, expected)
                seen.append(list(watched.read))
    return seen, len(set(watched.read)) == len(watched.read)


def test_the_next_micro_batch_is_read_while_one_is_in_use(ranks: Callable[[int], Ranks], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    write_tokens(tmp_path / "text", [random.integers(1, 131, 60) for _ in range(100)])
    config = tiny(
        "gqa_1.5B",
        f"data.path={tmp_path / 'text'}",
        f"data.cache={tmp_path}",
        f"training.micro_batch_size={SIZE}",
        f"training.global_batch_size={GLOBAL}",
    )
    ((seen, once),) = ranks(1).call(reads, config, tmp_path / "text")
    # Across the steps' ends, and not past the last step's.
    assert seen == [
        list(range(min(used + SIZE, READ_STEPS * GLOBAL))) for used in range(SIZE, READ_STEPS * GLOBAL + 1, SIZE)
    ]
    assert once


READING_S = 0.05


def slow_reading(config: RunConfig, prefix: Path) -> list[float]:
    """What is measured as the time of reading where each micro-batch takes READING_S."""
    from efficientbench.training.data.batches import Batches, HostBatch, Samples

    read = Batches._read_now

    def slowly(batches: Batches, dataset: Samples, start: int) -> HostBatch:
        time.sleep(READING_S)
        return read(batches, dataset, start)

    with mock.patch.object(Batches, "_read_now", slowly):
        return [reading_s for reading_s, _ in reading_and_training_s(config, prefix, 3)]


def test_no_batch_is_read_before_its_reading_is_timed(ranks: Callable[[int], Ranks], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    write_tokens(tmp_path / "text", [random.integers(1, 131, 60) for _ in range(100)])
    overrides = (f"data.path={tmp_path / 'text'}", f"data.cache={tmp_path}")
    batches = ("training.micro_batch_size=2", "training.global_batch_size=4")
    (times_s,) = ranks(1).call(slow_reading, tiny("gqa_1.5B", *overrides, *batches), tmp_path / "text")
    assert min(times_s) >= 2 * READING_S


@pytest.mark.proof
@pytest.mark.alone
def test_batches_are_50_times_faster_than_training(ranks: Callable[[int], Ranks], cache: str) -> None:
    config = resolve("mla_0.5B", smoke=True, overrides=[f"data.cache={cache}"])
    corpus = prepare_corpus(None, None, Path(cache), config.data.trained_vocab_size)
    pairs = ranks(1).call(reading_and_training_s, config, corpus.prefix, 20)[0]
    reading_s, training_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    assert training_s > 50 * reading_s, f"reading takes {reading_s / training_s:.1%} of a step"
