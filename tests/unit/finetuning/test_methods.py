"""Methods of fine-tuning: the project's own, and from outside by the name of their module or of an entry point."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support import outside

from efficientbench.basics.errors import ConfigError
from efficientbench.cli.listing import list_runs
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.load import resolve_tuning
from efficientbench.finetuning.methods import ENTRY_POINTS, METHODS, find_method
from efficientbench.finetuning.planning.request import PlanRequest, plan_request


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    outside.lay_out(tmp_path, monkeypatch)
    return tmp_path


def tiny(method: str) -> FinetuneConfig:
    return resolve_tuning("lora_tiny", overrides=[f"method={method}"])


def request(method: str) -> PlanRequest:
    return plan_request(tiny(method), 2, 2, None, None)


def test_an_external_method_names_its_run_and_its_formulas() -> None:
    config = tiny("my_method:GAUSSIAN")
    assert (config.name, config.method) == ("GAUSSIAN_tiny", "my_method:GAUSSIAN")
    assert replace(request("my_method:GAUSSIAN"), name="lora_tiny") == request("lora")
    with pytest.raises(ConfigError, match="method my_method:NORMS: declares no formulas"):
        request("my_method:NORMS")


def test_overriding_the_method_equals_naming_it() -> None:
    assert tiny("dora") == resolve_tuning("dora_tiny")


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("dorra", "there is no method called 'dorra': did you mean dora?"),
        ("my_method:NORM", "my_method has no NORM; did you mean my_method:NORMS?"),
        ("my_method:choose_norms", "my_method:choose_norms is of class function, not Method"),
        ("my_methods:NORMS", "there is no module my_methods: install its package"),
    ],
)
def test_an_invalid_method_is_refused(method: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        tiny(method)


def test_an_installed_method_is_listed_and_validated_without_being_imported(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside.install(package, ENTRY_POINTS, "trial_method", "hostile:METHOD")
    list_runs(["trial_method"])
    assert re.search(r"^trial_method +hostile:METHOD +method *$", capsys.readouterr().out, re.MULTILINE)
    # As of a record, which runs nothing.
    recorded = {**resolve_tuning("lora_tiny").model_dump(mode="json"), "method": "trial_method"}
    assert FinetuneConfig.model_validate(recorded).name == "trial_method_tiny"
    assert not (package / "ran").exists()
    with pytest.raises(ConfigError, match="hostile has no METHOD"):
        tiny("trial_method")


def test_the_projects_own_methods_have_formulas_and_a_kind() -> None:
    for name, method in METHODS.items():
        assert find_method(name) is method
        assert method.formulas is not None
        assert (method.lora is not None) == (method.formulas in ("lora", "dora"))
