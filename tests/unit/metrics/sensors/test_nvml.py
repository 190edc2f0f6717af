"""The NVML sensor against a driver that answers as NVML's documentation says; no GPU took part.

What only a GPU can prove (that the real driver answers so, and how fine its counters are) is not proved here.
"""

from __future__ import annotations

import os
import sys
import time

import psutil
import pynvml
import pytest
from replicas.nvml_replica import GB, Driver, Gpu
from support.metrics_parts import HandClock, measure_step, measure_steps, opened

from efficientbench.metrics import EfficiencyMonitor, MetricsError, NvmlSensor, merge
from efficientbench.metrics.sensors.base import ALLOCATOR_PEAKS, Sample


def four() -> Driver:
    return Driver(*(Gpu(f"GPU-{letter * 8}-0000-0000-0000-000000000000") for letter in "abcd"))


def found(driver: Driver, visible: str | None, **environment: str) -> str:
    """The first letters of the devices that the sensor watches under CUDA_VISIBLE_DEVICES."""
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    uuids = [device.uuid for device in opened(NvmlSensor(environment=environment, nvml=driver)).devices()]
    return "".join(uuid.split("-")[-1 if uuid.startswith("MIG") else 1][0] for uuid in uuids)


def test_every_called_function_exists_in_pynvml() -> None:
    for name in vars(Driver):
        if name.startswith("nvml"):
            assert callable(getattr(pynvml, name))


@pytest.mark.parametrize(
    ("visible", "letters"),
    [
        (None, "abcd"),
        ("0", "a"),
        ("2,0", "ca"),
        (" 3 , 1 ", "db"),
        ("GPU-cccccccc-0000-0000-0000-000000000000", "c"),
        ("GPU-d,GPU-a", "da"),
        ("1,GPU-a", "b"),  # an index first: what is no number ends the list
        ("GPU-a,1", "a"),
        ("1gpu,2", "bc"),  # read as strtoul reads
        ("1,-1,2", "b"),  # what follows an invalid entry is hidden
        ("1,9,2", "b"),
        ("GPU-a,GPU-x,GPU-b", "a"),
    ],
)
def test_visible_devices_are_found_by_index_and_uuid(visible: str | None, letters: str) -> None:
    assert found(four(), visible) == letters


@pytest.mark.parametrize("visible", ["", "-1", "9", "GPU-", "1,0,1", "GPU-a,GPU-a", "GPU-a,GPU-aa", "none"])
def test_an_empty_list_of_visible_devices_is_reported(visible: str) -> None:
    # "GPU-" is the beginning of every UUID, hence of none in particular.
    with pytest.raises(MetricsError, match="no GPU is visible"):
        found(four(), visible)


def sliced() -> Driver:
    mig = [
        Gpu(f"MIG-0000000{i}-0000-0000-0000-{letter * 12}", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", instance=(i, 0))
        for i, letter in enumerate("pq", start=1)
    ]
    return Driver(Gpu("GPU-aaaaaaaa-0000", slices=mig), Gpu("GPU-bbbbbbbb-0000"))


@pytest.mark.parametrize(
    ("visible", "letters"),
    [
        ("MIG-00000001-0000-0000-0000-pppppppppppp", "p"),
        ("MIG-00000002-0000-0000-0000-qqqqqqqqqqqq", "q"),
        ("MIG-GPU-aaaaaaaa-0000/2/0", "q"),
        ("0", "p"),  # a GPU in MIG mode stands for its first slice
        ("GPU-aaaaaaaa", "p"),
        ("1", "b"),
        ("MIG-GPU-aaaaaaaa-0000/9/0,1", None),
        # A process sees one slice at most, and beside it no whole GPU.
        ("MIG-00000002,MIG-00000001", "q"),
        ("1,0", "p"),
        (None, "p"),
    ],
)
def test_visible_mig_slices_are_found(visible: str | None, letters: str | None) -> None:
    if letters is None:
        with pytest.raises(MetricsError, match="no GPU is visible"):
            found(sliced(), visible)
    else:
        assert found(sliced(), visible) == letters


def test_a_mig_slice_has_its_own_memory_and_no_power() -> None:
    run = measure_step(NvmlSensor(environment={"CUDA_VISIBLE_DEVICES": "0"}, nvml=sliced()))
    assert (run.amu_gb, run.pcu, run.energy_j) == (pytest.approx(10), None, None)
    assert "MIG-00000001" in run.unavailable["energy_j"]
    assert "Not Supported" in run.unavailable["pcu"]


def test_indices_of_unlike_gpus_are_ambiguous_until_the_order_is_fixed() -> None:
    mixed = Driver(Gpu("GPU-aaaaaaaa"), Gpu("GPU-bbbbbbbb", name="NVIDIA H100 PCIe"))
    with pytest.raises(MetricsError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        found(mixed, "0")
    assert found(mixed, "1", CUDA_DEVICE_ORDER="PCI_BUS_ID") == "b"
    assert found(mixed, "GPU-b") == "b"


def test_devices_are_found_by_torchs_uuid_and_index() -> None:
    # torch gives UUIDs without the prefix.
    by_uuid = NvmlSensor(uuids=["cccccccc-0000-0000-0000-000000000000"], nvml=four())
    by_index = NvmlSensor(indices=[1], environment={"CUDA_VISIBLE_DEVICES": "3,2"}, nvml=four())
    for sensor in (by_uuid, by_index):
        assert [device.uuid[4] for device in opened(sensor).devices()] == ["c"]
    with pytest.raises(MetricsError, match="device 5 is not among the 4 visible"):
        NvmlSensor(indices=[5], environment={}, nvml=four()).open()
    with pytest.raises(MetricsError, match="no GPU has the UUID nope"):
        NvmlSensor(uuids=["nope"], nvml=four()).open()


def test_nvml_readings_are_in_our_units() -> None:
    sensor = opened(NvmlSensor(environment={}, nvml=Driver(Gpu("GPU-a"))))
    assert sensor.sample(5.0) == [Sample(5.0, "GPU-a", 10 * GB, 0.5, 250.0)]
    assert sensor.counters()["GPU-a"].energy_j == 7000
    assert sensor.devices()[0].memory_capacity_bytes == 80 * GB


@pytest.mark.parametrize(("lacks", "source"), [((), "counter"), (("energy",), "integrated power")])
def test_energy_comes_from_the_counter_or_else_from_power(lacks: tuple[str, ...], source: str) -> None:
    driver = Driver(Gpu("GPU-a", lacks=lacks))
    sensor = NvmlSensor(environment={}, nvml=driver)

    def spend() -> None:
        driver.gpus[0].energy_mj += 5000
        time.sleep(0.05)

    if source == "counter":
        run = measure_step(sensor, work=spend)
        assert run.energy_j == pytest.approx(5, rel=0.1)  # the edges' own time is scaled away
    else:
        run = measure_steps(HandClock(), sensor, readings=20)
        assert run.aec_w == pytest.approx(250)
    assert run.energy_source == source


@pytest.mark.parametrize("lacks", ["utilization", "power", "energy", "mig"])
def test_quantities_that_one_gpu_lacks_are_none_with_a_reason(lacks: str) -> None:
    sensor = opened(NvmlSensor(environment={}, nvml=Driver(Gpu("GPU-a"), Gpu("GPU-b", lacks=(lacks,)))))
    quantity = {"utilization": "utilization", "power": "power_w", "energy": "energy_j"}.get(lacks)
    missing = set(sensor.unavailable) - {*ALLOCATOR_PEAKS, "busy_s", "peak_memory_device_bytes"}
    assert missing == ({quantity} if quantity else set())
    assert all("GPU-b" in sensor.unavailable[name] for name in missing)


def test_a_gpu_lost_during_the_run_ends_only_its_series() -> None:
    driver = four()
    with EfficiencyMonitor([NvmlSensor(environment={}, nvml=driver)]) as monitor:
        with monitor.step(tokens=1):
            driver.lost = True
        with monitor.step(tokens=1):
            pass
    run = merge([monitor.finish()])
    assert (len(run.step_times_s), run.amu_gb) == (2, None)
    assert "GPU is lost" in run.unavailable["amu_gb"]
    assert driver.initialized == 0


def test_a_missing_pynvml_or_driver_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDriver(Driver):
        def nvmlInit(self) -> None:  # noqa: N802 (the driver's name)
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    with pytest.raises(MetricsError, match="no NVIDIA driver answers .Driver Not Loaded"):
        NvmlSensor(nvml=NoDriver()).open()

    monkeypatch.setitem(sys.modules, "pynvml", None)  # any import of it fails
    with pytest.raises(MetricsError, match="pip install nvidia-ml-py"):
        NvmlSensor().open()


def test_another_process_on_a_gpu_is_a_disturbance_but_the_runs_own_is_not() -> None:
    own = os.getpid()
    driver = Driver(Gpu("GPU-a", pids=(own,)), Gpu("GPU-b", pids=(own, os.getppid(), 2**22 + 1)))
    ((uuid, use),) = opened(NvmlSensor(environment={}, nvml=driver)).other_use().items()
    parent = psutil.Process(os.getppid()).name()
    named = [f"process {os.getppid()} ({parent})", f"process {2**22 + 1}"]
    assert (uuid, use.description) == ("GPU-b", f"on the device too: {', '.join(named)}")
    both = NvmlSensor(environment={}, nvml=driver, pids=[own, os.getppid(), 2**22 + 1])
    assert opened(both).other_use() == {}


@pytest.mark.parametrize("gpu", [Gpu("GPU-a", pids=(2**22 + 1,)), Gpu("GPU-a", lacks=("processes",))])
def test_processes_of_unknown_owner_are_no_disturbance(gpu: Gpu) -> None:
    # The run's own process is not listed: its ids are of another namespace, or NVML lists none.
    sensor = opened(NvmlSensor(environment={}, nvml=Driver(gpu)))
    assert sensor.other_use() == {}
    assert len(sensor.sample(0.0)) == 1


@pytest.mark.gpu
def test_the_real_driver_agrees_with_torch() -> None:
    import torch

    block = torch.ones(2 * GB, dtype=torch.uint8, device="cuda")
    sensor = NvmlSensor(indices=[0])
    run = measure_step(sensor, work=lambda: [block.add_(1) for _ in range(200)], synchronize=torch.cuda.synchronize)
    assert run.amu_gb >= 2
    assert run.aec_w > 0
