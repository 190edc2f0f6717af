"""The line of the whole budget: one function's, in every plan; and the launch of what cannot fit."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from support.command_line import efficientbench
from support.metrics_parts import make_record

from efficientbench.basics.errors import ConfigError
from efficientbench.cli.launch import Starter, launch
from efficientbench.cli.launch_script import Machines, NamedRun, budget_line
from efficientbench.cli.plan import plan
from efficientbench.config.load import resolve
from efficientbench.devices.registry import device_called
from efficientbench.metrics.sensors.hardware import device_rates, known_device
from efficientbench.planning.bill import Bill, bill, first_line
from efficientbench.planning.cluster_plan import layout_of_world
from efficientbench.planning.plan import make_plan, plan_anywhere, with_kernels
from efficientbench.planning.step_time import project
from efficientbench.planning.text import length_line
from efficientbench.sweep.estimate import measured_energy_j

RUN = Bill(time_s=3 * 3600.0, devices=8, energy_j=None, source="no record")


def test_a_budget_without_a_measurement_has_a_range_by_the_tdp() -> None:
    line = first_line([RUN], 1, "H100 SXM", price_per_hour=2.5)
    assert line == (
        "whole budget: 3 h 00 min, 24 device hours, 8.4 to 16.8 kWh (not measured: from 50% to all of a TDP of 700 W, "
        "devices alone), 60.00 at 2.5 for a device and hour"
    )


def test_a_measured_energy_is_told_with_its_source_and_an_unknown_one_as_such() -> None:
    measured = replace(RUN, energy_j=7.2e6, source="J/FLOP of the record nearest in size, gpu, training alone")
    assert "24 device hours, 2 kWh (J/FLOP of the record nearest" in first_line([measured], 1, "H100 SXM")
    # A sum that lacks a part would say too little.
    assert "16.8 to 33.6 kWh (not measured" in first_line([measured, RUN], 1, "H100 SXM")
    assert known_device("Ascend 910B2").tdp_w is None
    assert "kWh n/a (neither a measurement nor a TDP of Ascend 910B2 is known)" in first_line([RUN], 1, "Ascend 910B2")


def test_runs_at_once_take_less_time_and_as_many_device_hours() -> None:
    assert first_line([RUN] * 4, 2, "H100 SXM").startswith("whole budget of 4 runs: 6 h 00 min with 2 at once, 96 ")
    uneven = [replace(RUN, time_s=36_000.0), RUN]
    together = first_line(uneven, 2, "H100 SXM")
    assert together.startswith("whole budget of 2 runs: 10 h 00 min with all at once, 104 device hours, ")
    in_turn = first_line(uneven, 1, "H100 SXM")
    assert in_turn.startswith("whole budget of 2 runs: 13 h 00 min one after the other, 104 device hours, ")


def test_a_run_of_unknown_length_says_why_there_is_no_time() -> None:
    counted = plan_anywhere(resolve("gqa_0.5B", overrides=["training.epochs=2", "data.path=/text"]))
    assert first_line([bill(counted, 1.0, "")], 1, "H100 SXM") == (
        "whole budget: time, device hours, kWh n/a: training.epochs: the steps follow from the text, which is not "
        "counted yet"
    )


def test_records_of_a_device_count_under_the_drivers_name_and_the_tables() -> None:
    facts = {"device_name": "NVIDIA H100 80GB HBM3", "dtype": "bf16", "devices": 1, "tokens_per_s": 1000.0}
    facts |= {"flops_per_token": 1e9, "energy_j_per_token": 0.25, "energy_scope": "gpu"}
    planned = plan_anywhere(resolve("gqa_0.5B"))
    energy_j, source = measured_energy_j(planned, "H100 SXM", [make_record(facts)])
    assert energy_j == pytest.approx(0.25e-9 * planned.flops.training_hardware * planned.budget.tokens)
    assert source.startswith("J/FLOP of the record nearest in size, gpu")
    assert measured_energy_j(planned, "H100 PCIe", [make_record(facts)])[0] is None


def test_a_plan_begins_with_its_budget(capsys: pytest.CaptureFixture[str]) -> None:
    plan("gqa_0.5B")
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("whole budget: time, device hours, kWh n/a: --world N --device NAME")


def test_a_launch_says_its_budget_and_refuses_what_cannot_fit(capsys: pytest.CaptureFixture[str]) -> None:
    launch("gqa_1.5B", to=Starter.SLURM, nodes=2, device="H100 SXM", price_per_hour=2.0)
    printed = capsys.readouterr()
    assert printed.out.startswith("#!")
    config, layout = layout_of_world(resolve("gqa_1.5B"), 16, 8)
    planned = make_plan(with_kernels(config, device_called("cuda")), layout, 0)
    step_s = project(planned.config, layout, device_rates("H100 SXM", "bf16")).step_time_s
    projected = bill(planned, step_s, "by projection", device="H100 SXM")
    assert "; published runs took " in printed.err
    assert printed.err.splitlines() == [first_line([projected], 1, "H100 SXM", 2.0), length_line(planned)]
    too_large = ["training.micro_batch_size=16", "training.seq_len=16384", "training.global_batch_size=256"]
    with pytest.raises(ConfigError, match=r"gqa_3B does not fit: a rank needs about .*what would help: .*=") as caught:
        launch("gqa_3B", too_large, to=Starter.SLURM, nodes=2, device="H100 SXM")
    assert "a device has 80.00 GB" in str(caught.value)
    assert capsys.readouterr().out == ""


@pytest.mark.proof
@pytest.mark.parametrize("best", [False, True])
def test_a_plan_on_a_cluster_begins_with_its_budget(best: bool) -> None:
    # Counting a stage's parameters makes the process groups of this process, which other tests have made already.
    words = ("plan", "gqa_0.5B", "--world", "8", "--device", "H100 SXM", *(["--search"] if best else []))
    first, second = efficientbench(*words, "--price-per-hour", "2.0", expect=0, COLUMNS="300").stdout.splitlines()[:2]
    assert re.fullmatch(
        r"whole budget: [^,]+, [\d.,e+]+ device hours, [\d.,]+ to [\d.,]+ kWh \(not measured: .*\), [\d.,]+ at 2 for "
        r"a device and hour; published runs took .* at most",
        first,
    )
    # What the default run is: the budget of a measurement of speed, not of a training.
    assert re.fullmatch(
        r"of 405 steps, 13.3M tokens: 0.0269 tokens per parameter, .*; speed only: .* trains to a loss", second
    )


def test_a_jobs_repeats_follow_each_other_and_each_costs() -> None:
    machines = Machines(2, 8, "H100 SXM")
    one, three = (NamedRun("gqa_1.5B", repeat=repeat) for repeat in (None, 3))
    single, repeated, array = (budget_line(runs, machines, 1.0) for runs in ([one], [three], [three, three]))
    assert single is not None
    assert repeated is not None
    assert array is not None
    hours = [float(re.findall(r"([\d.]+) device hours", line)[0]) for line in (single, repeated, array)]
    assert hours == pytest.approx([hours[0], 3 * hours[0], 6 * hours[0]], rel=0.01)
    times = [float(re.findall(r": ([\d.]+) s[, ]", line)[0]) for line in (single, repeated, array)]
    assert times == pytest.approx([times[0], 3 * times[0], 3 * times[0]], rel=0.05)
    assert re.match(r"whole budget of 3 runs: [\d.]+ s one after the other, ", repeated)
    assert re.match(r"whole budget of 6 runs: [\d.]+ s with 2 at once, ", array)
    assert repeated.splitlines()[1].startswith("of 405 steps, 13.3M tokens: ")


def test_a_line_of_length_names_a_missing_text_and_epochs_without_a_count() -> None:
    missing = plan_anywhere(resolve("gqa_0.5B", overrides=["data.path=/no/such.txt"]))
    assert length_line(missing) == "of 405 steps, 13.3M tokens; data.path: /no/such.txt: no such file"


def test_a_launch_that_does_not_fit_names_a_layout_of_the_machines_that_it_has() -> None:
    machines = Machines(1, 8, "H100 SXM")
    with pytest.raises(ConfigError) as refused:
        NamedRun("gqa_32B").check(machines)
    words = str(refused.value).partition("what would help: ")[2].split()
    assert words == ["parallel.tp=8", "parallel.pp=1", "parallel.dp=1", "parallel.sp=true"]
    assert NamedRun("gqa_32B", tuple(words)).check(machines) == "gqa_32B"
