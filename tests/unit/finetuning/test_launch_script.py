"""Scripts that start a fine-tuning on several nodes."""

from __future__ import annotations

import pytest

from efficientbench.cli.launch_script import Machines, by_slurm, by_torchrun, named_runs
from efficientbench.config.errors import ConfigError
from efficientbench.launchers.job_scripts.shell_script import check
from efficientbench.launchers.job_scripts.torchrun import Meeting
from efficientbench.sweep.selection import Request

NODES = Machines(nodes=2, devices_per_node=8)


def test_both_starters_call_the_command_with_its_extra() -> None:
    runs = named_runs(Request(overrides=("data.path=rows.jsonl",), repeat=3), "lora_32B")
    for script in (by_torchrun(runs, NODES, Meeting()), by_slurm(runs, NODES, [])):
        check(script)
        assert "\nbootstrap finetune\n" in script
        assert 'efficientbench finetune "${arguments[@]}"' in script
        for word in ("lora_32B", "dlc", "--repeat", "data.path=rows.jsonl"):
            assert f"    {word}\n" in script


def test_what_cannot_work_there_is_refused_before_the_queue() -> None:
    runs = named_runs(Request(overrides=("training.global_batch_size=100",)), "lora_32B")
    with pytest.raises(ConfigError, match="the nearest that is: 96"):
        by_torchrun(runs, NODES, Meeting())
    with pytest.raises(ConfigError, match="name its keys as key=value"):
        named_runs(Request(axes=("training.seed=1,2",)), "lora_32B")
