"""`training.micro_batch_size=auto` by plan, against plans of each size, and what its file decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from efficientbench.basics.errors import ConfigError
from efficientbench.basics.part import AUTO
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.running.micro_batch import FILE, decide
from efficientbench.running.run import plan_on
from efficientbench.sweep.machine import Machine
from efficientbench.sweep.selection import Request
from efficientbench.sweep.tasks import build_tasks

NAME = "NVIDIA H200"


def machine(gigabytes: float, devices: int = 1) -> Machine:
    return Machine("cuda", NAME, tuple(map(str, range(devices))), int(gigabytes * 1e9), 1_500_000_000, None, True)


def run_of(name: str, output: Path, *words: str) -> RunConfig:
    return resolve(name, overrides=["training.micro_batch_size=auto", f"output={output}", *words])


def by_plan(*runs: RunConfig, part: Machine) -> int:
    return decide([(config, part) for config in runs], "cuda", NAME, trial=False)


def needed_bytes(config: RunConfig, size: int, part: Machine) -> int:
    return plan_on(config.changed("training", micro_batch_size=size), part, nodes=1).rank_memory_bytes()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_auto_is_the_largest_micro_batch_that_leaves_a_tenth_of_memory_free(size: int, tmp_path: Path) -> None:
    config = run_of("gqa_1.5B", tmp_path)
    fits, too_large = (needed_bytes(config, each, machine(1000)) for each in (size, 2 * size))
    assert by_plan(config, part=machine((fits + too_large) / 2 / 0.9 / 1e9)) == size
    # More tokens than 16,384 make no product faster, whatever the memory.
    assert by_plan(config, part=machine(1000)) == 8


def test_all_runs_of_a_suite_share_one_micro_batch(tmp_path: Path) -> None:
    small, large = run_of("gqa_0.5B", tmp_path), run_of("gqa_3B", tmp_path)
    own = [by_plan(small, part=machine(100)), by_plan(large, part=machine(100))]
    assert own[0] > own[1]
    assert by_plan(small, large, part=machine(100)) == own[1]
    # A run that fits with no micro-batch is refused later, with its reason, and decides nothing here.
    assert by_plan(small, run_of("moe_1.5Bx8", tmp_path), part=machine(100)) == own[0]


def test_the_micro_batch_divides_the_global_batch_among_replicas(tmp_path: Path) -> None:
    """Each of 8 devices has two of 16 sequences; the rounds of pipelines and odd batches divide further."""
    config = run_of("gqa_0.5B", tmp_path)
    assert by_plan(config, part=machine(141, 8)) == 2
    assert by_plan(run_of("gqa_0.5B", tmp_path, "training.global_batch_size=15"), part=machine(141)) == 5
    assert by_plan(run_of("gqa_0.5B", tmp_path, "training.seq_len=32768"), part=machine(141)) == 1


def test_a_suite_keeps_the_micro_batch_decided_for_its_device(tmp_path: Path) -> None:
    config, file = run_of("gqa_1.5B", tmp_path), tmp_path / FILE
    file.write_text(json.dumps({"micro_batch_size": 2, "device": NAME}))
    assert by_plan(config, part=machine(141)) == 2
    for content in (json.dumps({"micro_batch_size": 2, "device": "another"}), "{", "[]", '{"micro_batch_size": 0}'):
        file.write_text(content)
        assert by_plan(config, part=machine(141)) == 8
    file.write_text(json.dumps({"micro_batch_size": 8, "device": NAME}))
    with pytest.raises(ConfigError, match=r"auto is 8 in this suite .*micro_batch\.json"):
        by_plan(config, part=machine(45))


def test_a_sweep_passes_the_micro_batch_to_every_run(tmp_path: Path) -> None:
    overrides = ("training.micro_batch_size=auto", f"output={tmp_path}")
    request = Request(only=("gqa", "mla"), sizes=("0.5B", "3B"), overrides=overrides)
    tasks = build_tasks(request, machine(100), None, dry_run=True)
    sizes = {task.plan.config.training.micro_batch_size for task in tasks if task.plan}
    assert len(tasks) == 4
    assert len(sizes) == 1
    assert all(task.arguments[-1] == f"training.micro_batch_size={min(sizes)}" for task in tasks)
    assert not (tmp_path / FILE).exists()


def test_auto_is_refused_outside_run_and_sweep() -> None:
    config = resolve("gqa_1.5B", overrides=["training.micro_batch_size=auto"])
    assert config.training.micro_batch_size == AUTO
    with pytest.raises(ConfigError, match="auto is decided by `run` and `sweep`, on the devices: give a number here"):
        Layout.of(config, 1)
    with pytest.raises(ConfigError, match="training.micro_batch_size"):
        resolve("gqa_1.5B", overrides=["training.micro_batch_size=0"])
