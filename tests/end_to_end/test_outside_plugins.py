"""Meters and methods from outside this project, as a user has them: in runs of two ranks, in reports, in `doctor`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import outside
from support.command_line import TINY, efficientbench, record

METER = "measurement.meters=my_meter:Outlet"

pytestmark = pytest.mark.proof


def shows_it(folder: Path, report: Path) -> None:
    """The meter is in record and report, once, and in no figure of the devices."""
    content = record(folder)
    (use,) = content["meters"]
    assert (use["name"], use["source"], use["energy_source"]) == ("outlet 7", "my_meter:Outlet", "counter")
    assert use["energy_j"] > 0
    assert content["energy_scope"] != "meter"
    assert {each["device"] for each in content["timelines"]}.isdisjoint({"OUTLET-7"})
    # A report imports nothing that a run has named.
    done = efficientbench("report", str(report), expect=0)
    assert "outlet 7 (my_meter:Outlet) counted" in " ".join(done.stdout.split())
    assert "| outlet 7 | my_meter:Outlet |" in (report / "report.md").read_text()


def test_two_ranks_of_a_run_read_a_meter_once(path: str, tmp_path: Path, cache: str) -> None:
    words = ("run", "gqa_1.5B", "device=cpu", f"output={tmp_path}", f"data.cache={cache}", *TINY, "parallel.dp=2")
    done = efficientbench(*words, METER, PYTHONPATH=path, expect=0)
    assert "outlet 7 (my_meter:Outlet) counted" in " ".join(done.stdout.split())
    shows_it(tmp_path / "gqa_1.5B", tmp_path)
    job = json.loads((tmp_path / "gqa_1.5B" / "config.json").read_text())
    assert job["config"]["measurement"]["meters"] == ["my_meter:Outlet"]
    refused = efficientbench(*words, METER, "label=other", expect=2).stderr
    assert "there is no module my_meter" in refused
    assert "Traceback" not in refused
    assert not (tmp_path / "gqa_1.5B__other").exists()


def test_a_fine_tuning_of_two_ranks_by_an_external_method_reads_a_meter_once(path: str, tmp_path: Path) -> None:
    places = (f"output={tmp_path}", f"cache={tmp_path / 'cache'}", "device=cpu", "cpu_ranks=2")
    short = ("training.steps=4", "training.global_batch_size=4", "data.max_length=64", "measurement.warmup_steps=1")
    own = "method=my_method:NORMS"
    efficientbench("finetune", "lora_tiny", *places, *short, METER, own, PYTHONPATH=path, expect=0)
    folder = tmp_path / "NORMS_tiny"
    shows_it(folder, tmp_path)
    content = record(folder)
    assert (content["run"], content["finetuning"]["method"]) == ("NORMS_tiny", "my_method:NORMS")
    assert content["trainable_parameters"] == (2 * 4 + 1) * 64
    assert "or of this method, are not known" in content["unavailable"]["flops_per_token"]
    assert (folder / "model" / "model.safetensors").exists()


def test_an_adapter_of_an_external_method_is_saved_and_never_merged(path: str, tmp_path: Path) -> None:
    places = (f"output={tmp_path}", f"cache={tmp_path / 'cache'}", "device=cpu", "cpu_ranks=1", "zero.stage=0")
    short = ("training.steps=2", "training.global_batch_size=2", "data.max_length=64", "measurement.warmup_steps=1")
    own = "method=my_method:GAUSSIAN"
    efficientbench("finetune", "lora_tiny", *places, *short, own, PYTHONPATH=path, expect=0)
    folder = tmp_path / "GAUSSIAN_tiny"
    assert record(folder)["flops_per_token"] > 0
    assert (folder / "adapter" / "adapter_model.safetensors").exists()
    refused = efficientbench("finetune", "merge", str(folder), str(tmp_path / "whole"), PYTHONPATH=path, expect=2)
    assert "method my_method:GAUSSIAN is code from outside this project: PEFT merges" in refused.stderr


def test_doctor_lists_an_installed_plugin_without_importing_it(path: str, tmp_path: Path) -> None:
    outside.install(tmp_path / "outside", "efficientbench.meters", "trial", "hostile:Outlet")
    done = efficientbench("doctor", PYTHONPATH=path)
    assert "measurement.meters=trial (hostile:Outlet)" in done.stdout
    assert not (tmp_path / "outside" / "ran").exists()
