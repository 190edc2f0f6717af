"""How checkpoints are written: beside their place, a few kept, in the background, on full disks and slow ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from support.checkpoints import dying_writer, read_weights, slow_writer_on_rank_1, train, two_threads
from support.configs import tiny
from support.ranks import Ranks

from efficientbench.config.schema import RunConfig
from efficientbench.training.checkpoints.manifest import checkpoint_folder, complete, find_good, read_manifest


def configured(corpus: Path, *overrides: str) -> RunConfig:
    return tiny("gqa_1.5B", f"data.cache={corpus.parent}", *overrides)


def found(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoint").iterdir())


def test_the_last_checkpoints_are_kept(ranks: Callable[[int], Ranks], corpus: Path, tmp_path: Path) -> None:
    config = configured(corpus, "checkpoint.interval=2", "checkpoint.keep=3", "parallel.dp=2")
    ranks(2).call(train, config, corpus, 9, tmp_path)
    assert found(tmp_path) == ["step_00000006", "step_00000008", "step_00000009"]
    assert [read_manifest(folder).holds for folder in complete(tmp_path)] == ["everything", "everything", "weights"]
    last, before = (
        sum(path.stat().st_size for path in checkpoint_folder(tmp_path, step).glob("*.distcp")) for step in (9, 8)
    )
    assert last < before / 2


def test_an_asynchronous_checkpoint_equals_a_synchronous_one(
    ranks: Callable[[int], Ranks], corpus: Path, tmp_path: Path
) -> None:
    outcomes = {}
    for asynchronous in ("true", "false"):
        config = configured(
            corpus, "checkpoint.interval=3", "checkpoint.keep=9", f"checkpoint.asynchronous={asynchronous}"
        )
        config = config.model_copy(update={"parallel": config.parallel.model_copy(update={"dp": 2})})
        outcomes[asynchronous] = ranks(2).call(train, config, corpus, 8, tmp_path / asynchronous)[0]
    # Training goes on while a copy is written, and neither disturbs the other.
    assert outcomes["true"].losses == outcomes["false"].losses
    for step in (3, 6, 8):
        one, other = (read_weights(checkpoint_folder(tmp_path / each, step)) for each in outcomes)
        assert all(torch.equal(one[name], other[name]) for name in other)
    config = configured(corpus, "parallel.dp=2")
    again = ranks(2).call(train, config, corpus, 8, tmp_path / "again", checkpoint_folder(tmp_path / "true", 3))[0]
    assert again.losses == outcomes["false"].losses[3:]


def test_checkpoints_follow_in_time_once_the_measured_window_is_over(
    ranks: Callable[[int], Ranks], corpus: Path, tmp_path: Path
) -> None:
    window = ("measurement.warmup_steps=1", "measurement.min_steps=3")
    config = configured(corpus, "checkpoint.interval_s=1e-6", "checkpoint.keep=9", "parallel.dp=2", *window)
    ranks(2).call(train, config, corpus, 7, tmp_path)
    assert found(tmp_path) == [f"step_0000000{step}" for step in (4, 5, 6, 7)]
    # An attempt has a window of its own, and may have another interval.
    config = configured(corpus, "checkpoint.interval_s=1e-5", "checkpoint.keep=9", "parallel.dp=2", *window)
    ranks(2).call(train, config, corpus, 10, tmp_path / "again", checkpoint_folder(tmp_path, 5))
    assert found(tmp_path / "again") == ["step_00000009", "step_00000010"]


def test_a_time_ends_a_run_for_all_ranks_once_the_fewest_steps_are_measured(
    ranks: Callable[[int], Ranks], corpus: Path, tmp_path: Path
) -> None:
    window = ("measurement.warmup_steps=1", "measurement.min_steps=3")
    config = configured(corpus, "checkpoint.interval=2", "checkpoint.keep=9", "parallel.dp=2", *window)
    pool = ranks(2)

    def losses(name: str, steps: int, limits_s: tuple[float, ...] = (), resume: Path | None = None) -> list[float]:
        arguments = config, corpus, steps, tmp_path / name, resume, contextlib.nullcontext, limits_s
        first, second = (each.losses for each in pool.call(train, *arguments))
        assert first == second
        return first

    whole = losses("whole", 9)
    # The first rank decides, whatever the others' clocks say.
    assert losses("cut", 9, (0.0, math.inf)) == whole[:4]
    saved = [(manifest.step, manifest.holds) for manifest in map(read_manifest, complete(tmp_path / "cut"))]
    assert saved == [(2, "everything"), (4, "weights")]
    assert losses("uncut", 9, (math.inf, 0.0)) == whole
    # The next attempt has a window of its own.
    assert losses("late", 9, (0.0, 0.0), checkpoint_folder(tmp_path / "whole", 4)) == whole[4:8]


@pytest.mark.proof
def test_a_save_leaves_no_process(ranks: Callable[[int], Ranks], corpus: Path, tmp_path: Path) -> None:
    pool = ranks(1)
    for asynchronous in ("false", "true"):
        config = configured(corpus, "checkpoint.interval=1", f"checkpoint.asynchronous={asynchronous}")
        pool.call(train, config, corpus, 3, tmp_path / asynchronous)
        assert psutil.Process(pool.processes[0].pid).children(recursive=True) == []


@pytest.mark.proof
def test_a_writer_that_dies_ends_the_save_with_its_reason(
    ranks: Callable[[int], Ranks], corpus: Path, tmp_path: Path
) -> None:
    pool = ranks(1)
    config = configured(corpus, "checkpoint.interval=2", "checkpoint.keep=9")
    pool.call(train, config, corpus, 3, tmp_path)
    asynchronous = configured(corpus, "checkpoint.interval=2", "checkpoint.asynchronous=true")
    with pytest.raises(AssertionError, match=r"SaveError: rank 0 could not write .*exited without a result"):
        pool.call(train, asynchronous, corpus, 6, tmp_path, checkpoint_folder(tmp_path, 2), dying_writer)
    assert found(tmp_path) == ["step_00000002", "step_00000003"]


@pytest.mark.proof
def test_a_forked_process_writes_the_tensors_of_a_multithreaded_rank(
    ranks: Callable[[int], Ranks], corpus: Path, tmp_path: Path
) -> None:
    # Wide enough that torch shares a copy of a weight out among the threads, none of which is in the forked process.
    wide = ("model.ffn_hidden_size=2048", "checkpoint.interval=2", "checkpoint.time_limit_s=20")
    config = configured(corpus, *wide, "checkpoint.asynchronous=true")
    ranks(1).call(train, config, corpus, 5, tmp_path, None, two_threads)
    assert found(tmp_path) == ["step_00000004", "step_00000005"]


@pytest.mark.proof
def test_a_late_rank_is_named(ranks: Callable[[int], Ranks], corpus: Path, tmp_path: Path) -> None:
    pool = ranks(2)
    config = configured(corpus, "checkpoint.interval=2", "checkpoint.time_limit_s=1", "parallel.dp=2")
    for connection in pool.connections:
        connection.send((train, (config, corpus, 4, tmp_path, None, slow_writer_on_rank_1)))
    failures = {}
    for rank in (1, 0):
        assert pool.connections[rank].poll(300)
        failures[rank] = pool.connections[rank].recv()[0]
    for failure in failures.values():
        assert "SaveError: rank 1 did not write a part of " in failure
        assert "in 1 s (checkpoint.time_limit_s)" in failure
    assert complete(tmp_path) == []


def test_a_full_disk_loses_no_earlier_checkpoint(
    ranks: Callable[[int], Ranks], corpus: Path, small_disk: Callable[[int], Path], tmp_path: Path
) -> None:
    config = configured(corpus, "checkpoint.interval=2", "checkpoint.keep=1", "parallel.dp=2")
    ranks(2).call(train, config, corpus, 3, tmp_path)
    one_kilobytes = sum(path.stat().st_size for path in checkpoint_folder(tmp_path, 3).iterdir()) // 1024
    # Room for a first checkpoint with all states, three times as large and a little more, and a part of the next.
    disk = small_disk(5 * one_kilobytes)
    with pytest.raises(AssertionError, match=r"OSError: \[Errno 28\] No space left on device"):
        ranks(2).call(train, config, corpus, 8, disk)
    assert found(disk) == ["step_00000002"]
    assert find_good(disk)[0] == checkpoint_folder(disk, 2)
    small_disk(30 * one_kilobytes)
    again = ranks(2).call(train, config, corpus, 8, disk, find_good(disk)[0])[0]
    assert again.began_after == 2
    assert found(disk) == ["step_00000008"]
