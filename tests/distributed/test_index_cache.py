"""The cache of sample indices: written once however many runs start together, and whole after a builder was killed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.cells import write_corpus
from support.configs import tiny
from support.worlds import TIMEOUT_S, Opened, index_builds, load_megatron

from efficientbench.config.schema import RunConfig

# Three indices for each of two sources, and two more for their blend.
INDEX_FILES = 8


@pytest.fixture(scope="module")
def nursery() -> Iterator[Executor]:
    """One process that has megatron loaded and starts the runs."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=load_megatron) as executor:
        yield executor


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("blend")
    write_corpus(folder / "a", vocab_size=131)
    write_corpus(folder / "b", vocab_size=60, documents=90, length=70)
    return [folder / "a", folder / "b"]


def blend(prefixes: list[Path], cache: Path, *overrides: str) -> RunConfig:
    a, b = prefixes
    return tiny("gqa_1.5B", f"data.path=[0.7,{a},0.3,{b}]", f"data.cache={cache}", "data.split=[9,1,0]", *overrides)


def files(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (cache / "index").glob("*.npy")}


@pytest.fixture(scope="module")
def undisturbed(
    nursery: Executor, prefixes: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Opened, dict[str, bytes]]:
    """What one rank alone opens, and the index files that it wrote."""
    cache = tmp_path_factory.mktemp("alone")
    (alone,) = nursery.submit(index_builds, blend(prefixes, cache), prefixes, 1, 1).result(TIMEOUT_S)
    assert alone is not None
    assert alone.written == len(files(cache)) == INDEX_FILES
    return alone, files(cache)


def test_ranks_and_runs_that_start_together_write_each_file_once(
    nursery: Executor, prefixes: list[Path], undisturbed: tuple[Opened, dict[str, bytes]], tmp_path: Path
) -> None:
    config = blend(prefixes, tmp_path, "parallel.dp=2")
    opened = nursery.submit(index_builds, config, prefixes, 3, 2).result(TIMEOUT_S)
    assert len(opened) == 6
    assert all(np.array_equal(each.samples, undisturbed[0].samples) for each in opened)
    assert sorted(each.written for each in opened) == [0] * 5 + [INDEX_FILES]
    assert files(tmp_path) == undisturbed[1]


@pytest.mark.parametrize("die_at", [1, 4, 7, INDEX_FILES])
def test_other_ranks_build_the_index_after_a_killed_builder(
    nursery: Executor,
    prefixes: list[Path],
    undisturbed: tuple[Opened, dict[str, bytes]],
    tmp_path: Path,
    die_at: int,
) -> None:
    """Other ranks wait for the killed builder, or start later."""
    config = blend(prefixes, tmp_path)
    killed, *waiting = nursery.submit(index_builds, config, prefixes, 3, 1, die_at).result(TIMEOUT_S)
    assert killed is None
    (later,) = nursery.submit(index_builds, config, prefixes, 1, 1).result(TIMEOUT_S)
    for each in (*waiting, later):
        assert np.array_equal(each.samples, undisturbed[0].samples)
    assert files(tmp_path) == undisturbed[1]
