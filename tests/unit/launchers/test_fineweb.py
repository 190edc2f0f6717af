"""What the FineWeb scripts ask of the tools, stage by stage, with tools that record their calls."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from replicas.ascend_machine import clean_environment, clone_with_environment, executable, install_cann

# The device is asked for, and the record read, by programs on stdin.
PYTHON = """\
#!/bin/bash
cat >/dev/null
case "$*" in
"- auto" | "- npu" | "- cpu") echo "$FAKE_DEVICE"; exit ;;
esac
echo evaluate >>'{calls}'
"""
# As data_tools does: what is complete appears at once.
DATA_TOOL = """\
#!/bin/bash
words="efficientbench-data $*"
while [[ $# -gt 0 && "$1" != --output ]]; do shift; done
case "$words" in
*train-tokenizer*) sleep 0.3; mkdir "$2" ;;
*" tokenize "*) mkdir -p "$(dirname "$2")"; touch "$2.manifest.json" ;;
esac
echo "$words" >>'{calls}'
[[ "$words" != *"$FAKE_FAILURE"* || -z "$FAKE_FAILURE" ]]
"""
TOOL = """\
#!/bin/bash
echo "efficientbench $*" >>'{calls}'
[[ "$*" != *"$FAKE_FAILURE"* || -z "$FAKE_FAILURE" ]]
"""


class Machine:
    """A clone with tools that only write down how they are called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clone = clone_with_environment(folder / "a clone")
        self.calls = self.clone / "calls"
        tools = self.clone / ".venv" / "bin"
        for name in ("python", "python3"):
            executable(tools / name, PYTHON.replace("{calls}", str(self.calls)))
        executable(tools / "efficientbench-data", DATA_TOOL.replace("{calls}", str(self.calls)))
        executable(tools / "efficientbench", TOOL.replace("{calls}", str(self.calls)))
        self.text = folder / "my text.jsonl"
        self.text.write_text('{"text": "a"}\n')

    def run(self, script: str, *arguments: str, device: str = "npu 4", failure: str = "") -> tuple[int, str, list[str]]:
        """Exit status, stdout with stderr, and what was called."""
        self.calls.write_text("")
        done = self.start(script, *arguments, FAKE_DEVICE=device, FAKE_FAILURE=failure)
        return done.returncode, done.stdout + done.stderr, self.calls.read_text().splitlines()

    def start(self, script: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A call that ends by itself."""
        return subprocess.run(
            ["bash", str(self.clone / "launchers" / script), *arguments],
            cwd=self.folder,
            env=clean_environment(self.folder, **{"FAKE_DEVICE": "npu 4", "FAKE_FAILURE": "", **more}),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_every_stage_runs_once(machine: Machine) -> None:
    arguments = ("--data", str(machine.text), "--work", "the work", "training.steps=7")
    status, printed, calls = machine.run("train_with_fineweb.sh", *arguments)
    assert status == 0, printed
    work = machine.folder / "the work"
    assert calls == [
        "efficientbench plan base_d12 device=npu parallel.dp=4 training.steps=7",
        f"efficientbench-data train-tokenizer {machine.text} --vocab-size 65536 --chat --output {work}/tokenizer",
        f"efficientbench-data tokenize {machine.text} --output {work}/tokens/fineweb --tokenizer {work}/tokenizer",
        f"efficientbench run base_d12 dsw --repeat 1 --data "
        f"{work}/tokens/fineweb device=npu output={work}/runs data.cache={work}/cache parallel.dp=4 training.steps=7",
        "evaluate",
    ]
    status, printed, calls = machine.run("train_with_fineweb.sh", *arguments)
    assert status == 0
    assert "tokenizer: complete" in printed
    assert "tokens: complete" in printed
    assert [call.split()[0] for call in calls] == ["efficientbench", "evaluate"]


def test_a_failed_stage_ends_the_script_and_the_next_call_resumes(machine: Machine) -> None:
    status, printed, calls = machine.run("quick_fineweb_test.sh", failure="download")
    assert status == 1
    assert "the download is not complete; call again to resume, or give your own text with --data PATH" in printed
    text = machine.folder / "output" / "fineweb_quick" / "text"
    assert calls[1:] == [f"efficientbench-data download --num-files 1 --output {text}"]
    status, _, calls = machine.run("quick_fineweb_test.sh")
    assert status == 0
    assert len(calls) == 6
    assert " parallel.dp=4" in calls[4]
    status, printed, calls = machine.run("quick_fineweb_test.sh", failure="run base_d8")
    assert status == 1
    assert "text: complete" in printed
    assert len(calls) == 1


def test_the_number_of_devices_sets_parallelism_and_steps(machine: Machine) -> None:
    data = ("--data", str(machine.text))
    status, printed, calls = machine.run("train_with_fineweb.sh", *data, device="cuda 2")
    assert (status, calls) == (2, [])
    assert "4 devices are wanted and 2 of type cuda are here: --devices 2" in printed
    _, _, calls = machine.run("train_with_fineweb.sh", *data, "--devices", "2", device="cuda 2")
    assert " parallel.dp=2" in calls[3]
    _, _, calls = machine.run("train_with_fineweb.sh", "dlc", *data, device="npu 8")
    assert "base_d12 dlc " in calls[0]
    assert "parallel" not in calls[0]
    for layout in ("parallel.tp=8", "tp=8"):
        _, _, calls = machine.run("train_with_fineweb.sh", *data, "training.steps=3", layout, device="npu 8")
        assert "parallel.dp" not in calls[0]
        assert calls[0].endswith(f" training.steps=3 {layout}")
    _, printed, calls = machine.run("train_with_fineweb.sh", *data, device="cpu 0")
    assert "shortened" in printed
    assert "training.steps=20" in calls[0]
    # The batch of the command line takes the place of the shortened one, by whatever name.
    for batch in ("--device_batch_size=16", "total_batch_size=262144", "gbs=8"):
        _, _, calls = machine.run("train_with_fineweb.sh", *data, batch, device="cpu 0")
        assert "training.seq_len=128" in calls[0]
        assert "training.global_batch_size=4" not in calls[0]
        assert calls[0].endswith(f" {batch.removeprefix('--')}")


@pytest.mark.parametrize(("here", "used"), [(8, 4), (4, 4), (3, 2), (1, 1)])
def test_the_quick_test_uses_up_to_four_devices(machine: Machine, here: int, used: int) -> None:
    data = ("--data", str(machine.text))
    status, printed, calls = machine.run("quick_fineweb_test.sh", *data, device=f"cuda {here}")
    assert status == 0, printed
    assert f" parallel.dp={used} " in f"{calls[3]} "
    # What is asked for is not made fewer.
    status, printed, _ = machine.run("quick_fineweb_test.sh", *data, "--devices", "9", device=f"cuda {here}")
    assert (status, f"9 devices are wanted and {here} of type cuda are here" in printed) == (2, True)


def test_unusable_npus_are_not_silently_replaced_by_the_cpu(machine: Machine) -> None:
    install_cann(machine.folder / "Ascend")
    (machine.folder / "davinci0").touch()
    data = ("--data", str(machine.text))
    status, printed, calls = machine.run("train_with_fineweb.sh", *data, device="cpu 0")
    assert (status, calls) == (2, [])
    assert "this machine has NPUs and they cannot be used: source launchers/setup_ascend.sh prints why" in printed
    _, printed, calls = machine.run("train_with_fineweb.sh", *data, "--device", "cpu", device="cpu 0")
    assert "shortened" in printed
    assert " device=cpu " in calls[3]


def test_two_concurrent_calls_prepare_data_once(machine: Machine) -> None:
    arguments = ("--data", str(machine.text))
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(machine.start, "train_with_fineweb.sh", "dlc", *arguments, RANK=str(node)) for node in range(2)
        ]
        first, second = (call.result() for call in calls)
    assert (first.returncode, second.returncode) == (0, 0)
    called = machine.calls.read_text().splitlines()
    assert [
        sum(word in call for call in called) for word in ("train-tokenizer", " tokenize ", " dlc ", "evaluate")
    ] == [*(1, 1, 2, 1)]
    assert "evaluation: on node 0, which writes the record" in second.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--frobnicate"], "unknown argument '--frobnicate'"),
        (["--device_batch_size"], "--device_batch_size needs a value"),
        (["--depth", "twelve"], "--depth is a whole number of layers"),
        (["--data"], "--data needs a value"),
        (["--devices", "four"], "whole numbers above 0"),
        (["--devices", "0"], "whole numbers above 0"),
        (["--devices", "4", "parallel.tp=2"], "--devices and parallel.* keys both set the number of devices"),
        (["--devices", "4", "gbs=8", "tp=2"], "--devices and parallel.* keys both set the number of devices"),
        (["--data", "/no/such/text"], "--data /no/such/text is not there"),
    ],
)
def test_wrong_arguments_are_refused(machine: Machine, arguments: list[str], message: str) -> None:
    status, printed, calls = machine.run("quick_fineweb_test.sh", *arguments)
    assert (status, calls) == (2, [])
    assert message in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--frobnicate"], "错误：未知的参数 '--frobnicate'"),
        (["--data"], "错误：--data 需要一个值"),
        (["--depth", "twelve"], "错误：--depth 应为整数层数，如 --depth 12"),
        (["--devices", "0"], "错误：--num-files 和 --devices 应为大于 0 的整数"),
        (["--devices", "4", "tp=2"], "错误：--devices 和 parallel.* 键都设定设备数："),
        (["--data", "/no/such/text"], "错误：--data /no/such/text 不存在"),
    ],
)
def test_wrong_arguments_are_refused_in_chinese(machine: Machine, arguments: list[str], message: str) -> None:
    done = machine.start("quick_fineweb_test.sh", *arguments, LANG="zh_CN.UTF-8")
    assert done.returncode == 2
    assert message in done.stdout + done.stderr
    assert "error:" not in done.stdout + done.stderr


def test_wrong_keys_end_the_script_before_any_work(machine: Machine) -> None:
    words = ("--data", str(machine.text), "traning.steps=3")
    status, printed, calls = machine.run("train_with_fineweb.sh", *words, failure="traning")
    assert (status, calls) == (1, ["efficientbench plan base_d12 device=npu parallel.dp=4 traning.steps=3"]), printed


def test_nanochats_options_are_taken(machine: Machine) -> None:
    depth = ("--depth", "10"), ("--depth=10",), ("depth=10",)
    sizes = ("--device_batch_size=16", "--total-batch-size", "262144", "--num_iterations", "7", "--lr=1e-3")
    for words in depth:
        status, printed, calls = machine.run("quick_fineweb_test.sh", f"--data={machine.text}", *words, *sizes)
        assert status == 0, printed
        (trained,) = (call for call in calls if call.startswith("efficientbench run"))
        assert trained.startswith("efficientbench run base_d10 dsw ")
        assert trained.endswith(" device_batch_size=16 total-batch-size=262144 num_iterations=7 lr=1e-3")


def test_a_work_folder_made_from_another_text_is_refused(machine: Machine) -> None:
    assert machine.run("quick_fineweb_test.sh", "--data", str(machine.text))[0] == 0
    status, printed, calls = machine.run("quick_fineweb_test.sh")
    assert (status, calls) == (2, [])
    assert f"was made from {machine.text}, not from FineWeb-Edu, 1 files: choose another folder with --work" in printed


WORDS = ("dlc", "--variant", "mla", "--work", "the work", "training.steps=7")


@pytest.mark.parametrize(
    ("script", "npus", "device"),
    [
        ("speedrun.sh", False, "auto"),
        ("speedrun.sh", True, "npu"),
        ("speedrun_npu.sh", False, "auto --device npu"),
        ("speedrun_npu.sh", True, "npu --device npu"),
    ],
)
def test_the_speedrun_script_passes_all_its_arguments(machine: Machine, script: str, npus: bool, device: str) -> None:
    if npus:
        install_cann(machine.folder / "Ascend")
        (machine.folder / "davinci0").touch()
    status, printed, calls = machine.run(script, *WORDS, failure="nothing")
    assert (status, calls) == (0, [f"efficientbench speedrun --device {device} {' '.join(WORDS)}"]), printed
    # Its end is the command's.
    assert machine.run(script, *WORDS, failure="speedrun")[0] == 1


def test_speedrun_on_npus_without_cann_is_refused(machine: Machine) -> None:
    if Path("/usr/local/Ascend").exists() or Path("/opt/Ascend").exists():
        pytest.skip("this machine has an Ascend folder")
    (machine.folder / "davinci0").touch()
    status, printed, calls = machine.run("speedrun.sh")
    assert (status, calls) == (1, [])
    assert "CANN was not found in ASCEND_INSTALL_PATH" in printed
