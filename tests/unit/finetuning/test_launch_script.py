"""Scripts that start a fine-tuning on several nodes."""

from __future__ import annotations

import pytest

from efficientbench.basics.errors import ConfigError
from efficientbench.cli.launch_script import Machines, by_slurm, by_torchrun, named_runs
from efficientbench.launchers.job_scripts.shell_script import check
from efficientbench.launchers.job_scripts.torchrun import Meeting
from efficientbench.sweep.selection import Request

NODES = Machines(nodes=2, devices_per_node=8)


def test_torchrun_and_slurm_scripts_call_the_command_with_its_extra() -> None:
    runs = named_runs(Request(overrides=("data.path=rows.jsonl",), repeat=3), NODES, "lora_32B")
    for script in (by_torchrun(runs, NODES, Meeting()), by_slurm(runs, NODES, [])):
        check(script)
        assert "\nbootstrap finetune\n" in script
        assert 'efficientbench finetune "${arguments[@]}"' in script
        for word in ("lora_32B", "dlc", "--repeat", "data.path=rows.jsonl"):
            assert f"    {word}\n" in script


def test_impossible_jobs_of_fine_tunings_are_refused_before_submission() -> None:
    runs = named_runs(Request(overrides=("training.global_batch_size=100",)), NODES, "lora_32B")
    with pytest.raises(ConfigError, match="the nearest that is: 96"):
        by_torchrun(runs, NODES, Meeting())


def test_several_fine_tunings_become_a_slurm_array() -> None:
    for request, name in (
        (Request(axes=("curriculum.order=paced,shuffled",)), "lora_32B"),
        (Request(only=("lora", "dora"), sizes=("32B",)), None),
    ):
        runs = named_runs(request, NODES, name)
        assert len(runs) == 2
        script = by_slurm(runs, NODES, [])
        check(script)
        assert "#SBATCH --array=0-1" in script
        with pytest.raises(ConfigError, match="torchrun starts one run"):
            by_torchrun(runs, NODES, Meeting())
    assert [run.overrides for run in named_runs(Request(axes=("lora_r=8,16",)), NODES, "lora_32B")] == [
        ("adapter.r=8", "label=r=8"),
        ("adapter.r=16", "label=r=16"),
    ]
