"""bf16 on a CPU by the instructions that Linux lists, and the warning where it is slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.command_line import environment
from support.printed import on_one_line

from efficientbench.basics.language import in_chinese
from efficientbench.config.load import resolve
from efficientbench.devices import cpu
from efficientbench.devices.cpu import CPU, multiplies_bf16, processor
from efficientbench.doctor.doctor import check_machine
from efficientbench.planning.plan import plan_anywhere
from efficientbench.planning.plan_table import print_plan

AVX2 = "fpu sse2 avx fma avx2"
AVX512 = f"{AVX2} avx512f avx512dq avx512cd avx512bw avx512vl"
ARM = "fp asimd aes sha2 atomics fphp asimdhp asimddp sve"


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace Linux's description of the processors."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(cpu, "CPUINFO", str(path))
    return path


def x86(flags: str) -> str:
    # The second processor has more instructions; only the first one counts.
    return "".join(
        f"processor\t: {index}\nmodel name\t: Some CPU\nflags\t\t: {each}\nvmx flags\t: vnmi\nbugs\t\t:\n\n"
        for index, each in enumerate([flags, AVX512])
    )


@pytest.mark.parametrize(
    ("text", "multiplies"),
    [
        (x86(AVX2), False),
        (x86(AVX512), True),
        # A Xeon Phi has a part of them.
        (x86(f"{AVX2} avx512f avx512cd avx512er"), False),
        (f"processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: {ARM} i8mm bf16\n", True),
        (f"processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: {ARM}\n", False),
        ("processor\t: 0\ncpu\t\t: POWER9\n", None),
        (None, None),
    ],
)
def test_bf16_products_by_instructions(described: Path, text: str | None, multiplies: bool | None) -> None:
    if text is not None:
        described.write_text(text)
    assert multiplies_bf16() is multiplies
    assert list(CPU().slow_dtypes()) == (["bf16"] if multiplies is False else [])


@pytest.mark.parametrize("has_them", [True, False])
def test_torch_decides_where_linux_does_not_list_the_instructions(
    described: Path, has_them: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    described.write_text(x86(f"{AVX2} avx_vnni"))
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has_them)
    assert multiplies_bf16() is has_them


def test_torch_agrees_on_this_machine() -> None:
    if multiplies_bf16() is None:
        pytest.skip("this system describes no instructions")
    assert multiplies_bf16() is torch.ops.mkldnn._is_mkldnn_bf16_supported()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"cpu family\t: 25\nmodel\t\t: 17\n{x86(AVX512)}", "family 25, model 17, avx512f"),
        (f"cpu family\t: 6\nmodel\t\t: 85\n{x86(AVX2)}", "family 6, model 85, avx2"),
        (f"Features\t: {ARM} bf16\nCPU implementer\t: 0x48\nCPU part\t: 0xd01\n", "family 0x48, model 0xd01, sve"),
        (None, "family None, model None, no wide vectors"),
    ],
)
def test_processors_of_one_name_are_told_apart(described: Path, text: str | None, said: str) -> None:
    if text is not None:
        described.write_text(text)
    assert processor() == said


def test_every_page_warns_and_names_the_faster_dtype(described: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described.write_text(x86(AVX2))
    warning = CPU().dtype_warning("bf16")
    assert warning is not None
    assert warning.startswith("training.dtype=bf16 is slow here: torch has no bf16 matrix products for Some CPU (")
    assert warning.endswith("on this CPU add training.dtype=fp32")
    assert in_chinese(f"warning: {warning}") == (
        "警告：training.dtype=bf16 在此处很慢：torch 在 Some CPU 上没有 bf16 矩阵乘法（x86 上需要 AVX-512 或 "
        "AVX-NE-CONVERT，Arm 上需要 bf16），没有它时的乘法比 float32 慢许多倍；在此 CPU 上请加 training.dtype=fp32"
    )
    CPU().check("bf16")
    check_machine()
    assert warning in " ".join(capsys.readouterr().out.split())
    assert f"warning: {warning} " in planned("training.dtype=bf16")
    for overrides in (["training.dtype=fp32"], ["training.dtype=bf16", "device=cuda"]):
        assert "warning" not in planned(*overrides)
    described.write_text(x86(AVX512))
    assert "warning" not in planned("training.dtype=bf16")


def planned(*overrides: str) -> str:
    return on_one_line(print_plan, plan_anywhere(resolve("gqa_0.5B", overrides=overrides)))


def test_a_context_of_another_device_holds_where_the_cpu_stands_in_for_cuda() -> None:
    # In a process of its own: torch lists its factories once, at the first such context.
    code = """if True:
        import torch
        from efficientbench.devices.cpu import CPU
        CPU().prepare(0)
        with torch.device("meta"):
            print(torch.arange(3).device, torch.zeros(3, device="cuda").device)
    """
    line = [sys.executable, "-c", code]
    told = subprocess.run(line, capture_output=True, text=True, env=environment(), check=True).stdout
    assert told == "meta cpu\n"
