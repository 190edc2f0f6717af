"""What `doctor` says of fine-tuning's libraries, with distributions that are laid down as pip would."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from efficientbench.doctor.check import Check
from efficientbench.doctor.finetuning import INSTALL, finetuning_check

PYTHON = (3, 11, 9)
IMAGE = {"torch": "2.6.0", "transformers": "4.51.3"}
STACK = {"trl": "1.16.0", "peft": "0.21.2"}


def lay_down(folder: Path, versions: dict[str, str]) -> None:
    """Write the metadata of distributions, with the requirements that the real ones declare of each other."""
    needs = {
        "efficientbench": (
            "pyyaml>=6.0",
            'torch>=2.6; extra == "train"',
            'trl<2,>=1.16; python_version >= "3.11" and extra == "finetune"',
            'peft<1,>=0.21; python_version >= "3.11" and extra == "finetune"',
        ),
        "trl": ("transformers>=4.56.2", 'torch>=9; extra == "never"'),
        "peft": ("torch>=1.13.0", "transformers"),
    }
    for name, version in versions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {each}" for each in needs.get(name, ())]
        (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("versions", "result"),
    [
        ({}, "the package is not installed, so what its extra needs is not known here"),
        ({"efficientbench": "0.1.0", **IMAGE}, "lacks trl, peft"),
        (
            {"efficientbench": "0.1.0", **IMAGE, **STACK},
            "needs transformers >=4.56.2 for trl, not 4.51.3",
        ),
        (
            {"efficientbench": "0.1.0", **STACK, "torch": "2.6.0", "transformers": "5.23.0", "trl": "0.9.6"},
            "needs trl <2,>=1.16, not 0.9.6",
        ),
        (
            {"efficientbench": "0.1.0", **STACK, "transformers": "5.23.0"},
            "needs torch >=1.13.0 for peft, which is not installed",
        ),
        (
            {"efficientbench": "0.1.0", **STACK, "torch": "2.6.0", "transformers": "5.23.0"},
            "trl 1.16.0, peft 0.21.2, transformers 5.23.0, torch 2.6.0",
        ),
    ],
)
def test_what_is_missing_or_too_old_is_named(
    versions: dict[str, str], result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_down(tmp_path, versions)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = finetuning_check(PYTHON)
    assert found.result == result
    assert found.passed == (result.startswith("the package") or "torch 2.6.0" in result)
    assert found.remedy == ("" if found.passed else INSTALL)


def test_python_3_10_is_refused_with_the_versions_that_serve() -> None:
    assert finetuning_check((3, 10, 14)) == Check(
        "finetune", False, "needs Python 3.11 or newer, as TRL does; this is 3.10.14"
    )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TRL needs Python 3.11")
def test_the_stack_of_this_environment_serves() -> None:
    found = finetuning_check()
    assert found.passed, found.result
    assert "deepspeed" in found.result
