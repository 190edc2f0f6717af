"""What is packed to be shared: a readable record, the doctor's findings and logs, and nothing of the user."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest
from support.metrics_parts import make_record
from support.repository import ROOT

from efficientbench.devices.cpu import CPU
from efficientbench.devices.npu import NPU
from efficientbench.devices.registry import all_devices
from efficientbench.doctor.share import MOST_LINES, pack
from efficientbench.metrics.records.record import read_record, write_record
from efficientbench.metrics.records.record_parts import DataSource
from efficientbench.running.kind import Site
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.parent import _asked_to_share

PRIVATE = ("alice", "novel", "frodo", "hobbits", "node-17", "10.1.2.3", "02:42:ac:11:00:02", "thesis")
CONFIG = {
    **{
        "variant": "gqa",
        "size": "0.5B",
        "device": "npu",
        "label": "thesis",
        "wandb": "hobbits",
        "output": "/srv/frodo",
    },
    "model": {"attention": {"kind": "gqa", "query_groups": 2}, "hidden_size": 64},
    "training": {"dtype": "fp32", "tokens": "20x"},
    "data": {"path": [0.5, "novel.txt", 0.5, "texts/my novel"], "tokenizer": "alice/words", "split": [99, 1, 0]},
    "init": {"run": "runs/frodo", "state": "weights"},
}
LOG = """\
2026-11-20 INFO root: step 1/6 | loss 5.6 | 812 ms, weights of /srv/frodo/x and 20x
/opt/alice env/lib/python3.12/site-packages/torch/nn/functional.py:12: UserWarning: slow on node-17 (10.1.2.3)
gloo: 02:42:ac:11:00:02, fe80::1:2; texts/my novel; HCCL 8.0.RC2 at /dev/davinci0, https://hub.example/alice/words
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a made-up run of a user, packed."""
    folder = tmp_path_factory.mktemp("run")
    source = DataSource("texts/my novel", 1.0, 3, 400, "f" * 64, "e" * 64)
    write_record(
        make_record(
            {
                **{"run": "gqa_0.5B__thesis", "variant": "gqa", "size": "0.5B", "config": CONFIG, "data": [source]},
                "environment": {"hostname": "node-17", "python": "3.12.1", "cores": 8},
                "kernel_reasons": {"attention": "flash failed in /home/alice/kernels/x.py"},
            },
            "no RAPL zone in /sys/class/powercap",
        ),
        folder / "record.json",
    )
    (folder / "log").mkdir()
    (folder / "log" / "rank_0.log").write_text(LOG)
    (folder / "log" / "rank_1.out").write_text("line\n" * (2 * MOST_LINES))
    pack(folder)
    return folder


def packed(run: Path) -> dict[str, str]:
    """Return the files of a run's archive."""
    with zipfile.ZipFile(run / "shared.zip") as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_a_packed_run_says_nothing_of_its_user_and_all_of_its_machine(run: Path) -> None:
    files = packed(run)
    assert sorted(files) == ["doctor.txt", "log/rank_0.log", "log/rank_1.out", "record.json"]
    for name, text in files.items():
        found = [word for word in (*PRIVATE, str(run)) if word in text]
        assert (name, found) == (name, [])
    log = files["log/rank_0.log"]
    for kept in ("step 1/6 | loss 5.6 | 812 ms, weights of", "/torch/nn/functional.py:12", "/dev/davinci0", "8.0.RC2"):
        assert kept in log
    assert "Measurement" in files["doctor.txt"]
    assert len(files["log/rank_1.out"].splitlines()) == MOST_LINES + 1


def test_a_packed_record_reads_as_one_with_its_figures(run: Path, tmp_path: Path) -> None:
    (tmp_path / "received.json").write_text(packed(run)["record.json"])
    before, after = read_record(run / "record.json"), read_record(tmp_path / "received.json")
    assert (after.run, after.tokens_per_s, after.device_name) == ("gqa_0.5B", before.tokens_per_s, before.device_name)
    assert after.config["model"] == CONFIG["model"]
    assert (after.config["training"], after.config["init"]["state"]) == (CONFIG["training"], "weights")
    assert "/sys/class/powercap" in json.dumps(after.unavailable)


def test_a_first_complete_run_on_hardware_that_nobody_tried_asks_to_share(tmp_path: Path) -> None:
    def asked(device: NPU | CPU, name: str, **facts: str) -> list[str]:
        record = make_record({"device_name": "Ascend910B2", **facts})
        write_record(record, tmp_path / name / "record.json")
        return _asked_to_share(record, Site(device, None, OutputFolder(tmp_path / name)))

    assert asked(CPU(), "on_cpu", device_name="a processor") == []
    assert asked(NPU(), "stopped", status="stopped", device_name="Ascend910A") == []
    assert asked(NPU(), "first")[-1].endswith(f"efficientbench share {tmp_path / 'first'}")
    assert asked(NPU(), "second") == []


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_devices_are_tried_where_the_front_page_says_so(page: str) -> None:
    rows = re.findall(r"^\|(.+)\|$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    header = next(index for index, row in enumerate(rows) if "NVIDIA GPU" in row and "CPU" in row)
    marks = [cell.strip() for cell in rows[header + 2].split("|")][1:]
    tried = {device.type: device.tried for device in all_devices()}
    assert [mark.startswith("✓") for mark in marks] == [tried["cpu"], tried["cuda"], tried["npu"]]
