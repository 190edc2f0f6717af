"""Which GPUs a process sees, against torch's own reading; and that ranks together never count one twice."""

from __future__ import annotations

import itertools
from unittest.mock import patch

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replicas.nvml_replica import Driver, Gpu
from support.metrics_parts import opened

from efficientbench.metrics import EfficiencyMonitor, MetricsError, NvmlSensor, merge
from efficientbench.metrics.monitoring.measurement import RankMeasurement

WHOLE = ("GPU-1a2b0000", "GPU-1a3c0000", "GPU-9f000000", "GPU-0d000000")


def machine(sliced: frozenset[int] = frozenset()) -> Driver:
    """Four GPUs, those in `sliced` in MIG mode with two slices each; a slice's UUID tells its GPU."""
    gpus = []
    for number, uuid in enumerate(WHOLE):
        slices = [Gpu(f"MIG-{number}{i}-{uuid[4:]}", instance=(i, 0)) for i in (1, 2)] if number in sliced else []
        gpus.append(Gpu(uuid, slices=slices, energy_mj=1_000_000 * (number + 1)))
    return Driver(*gpus)


def seen(driver: Driver, listed: str | None) -> list[str]:
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    try:
        return [device.uuid for device in opened(NvmlSensor(environment=environment, nvml=driver)).devices()]
    except MetricsError:
        return []


def torchs_reading(listed: str) -> list[str]:
    """The devices by `torch.cuda`'s code for counting them from NVML's answers, which is no part of ours."""
    with patch.dict("os.environ", {"CUDA_VISIBLE_DEVICES": listed}):
        parsed = torch.cuda._parse_visible_devices()
    if parsed and isinstance(parsed[0], str):
        parsed = torch.cuda._transform_uuid_to_ordinals(parsed, list(WHOLE))
    return [WHOLE[number] for number in itertools.takewhile(lambda number: number < len(WHOLE), parsed)]


texts = st.sampled_from(
    [*"01234", "-1", "", " 2", "3x", "x3", "+1", *WHOLE, "GPU-1a", "GPU-1a2", "GPU-9", "GPU-", "MIG-0", " GPU-9"]
)


@settings(max_examples=150)
@given(st.lists(texts, min_size=1, max_size=5).map(",".join))
def test_visible_gpus_match_torchs_own(listed: str) -> None:
    if listed.startswith("MIG-"):
        return  # torch leaves these to CUDA
    assert seen(machine(), listed) == torchs_reading(listed)


@st.composite
def ranks_and_machines(draw: st.DrawFn) -> tuple[frozenset[int], list[tuple[str | None, int | None, bool]]]:
    """A machine, and for each rank its visibility setting, the index it watches (None: all), whether by UUID."""
    sliced = draw(st.frozensets(st.integers(0, 3)))
    names = [*"0123", *WHOLE, *(f"MIG-{n}{i}" for n in sliced for i in (1, 2))]
    names += [f"MIG-{WHOLE[n]}/{i}/0" for n in sliced for i in (1, 2)]
    setting = st.none() | st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True).map(",".join)
    rank = st.tuples(setting, st.none() | st.integers(0, 3), st.booleans())
    return sliced, draw(st.lists(rank, min_size=1, max_size=6))


def watched(driver: Driver, listed: str | None, index: int | None, by_uuid: bool) -> NvmlSensor | None:
    """The sensor of one rank, or None where its setting shows no such device."""
    visible = seen(driver, listed)
    if not visible or (index is not None and index >= len(visible)):
        return None
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    if by_uuid:  # without the prefix, as torch gives it
        chosen = visible if index is None else [visible[index]]
        return NvmlSensor(uuids=[uuid.partition("-")[2] for uuid in chosen], nvml=driver)
    return NvmlSensor(indices=None if index is None else [index], environment=environment, nvml=driver)


@settings(max_examples=100)
@given(ranks_and_machines())
def test_all_ranks_together_count_each_device_once(
    drawn: tuple[frozenset[int], list[tuple[str | None, int | None, bool]]],
) -> None:
    sliced, ranks = drawn
    driver = machine(sliced)
    measured: list[RankMeasurement] = []
    for number, (listed, index, by_uuid) in enumerate(ranks):
        sensor = watched(driver, listed, index, by_uuid)
        if sensor is None:
            continue
        monitor = EfficiencyMonitor([sensor], rank=number, sample_interval_s=1e6)
        with monitor, monitor.step(tokens=1):
            pass
        measured.append(monitor.finish())
    if not measured:
        return
    everywhere = [device.info.uuid for rank in measured for device in rank.devices]
    run = merge(measured)
    assert [line.device for line in run.timelines] == sorted(set(everywhere))
    assert len(run.device_names) == len(set(everywhere))
    # A GPU in MIG mode is read through its slices alone, so that its memory is in no figure twice.
    assert not {WHOLE[number] for number in sliced} & set(everywhere)
    if run.power_w_sum is not None:
        assert round(run.power_w_sum) == 250 * len(set(everywhere))
