"""Code from outside: listed by metadata, imported only when it is loaded, and refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import outside

from efficientbench.basics.errors import ConfigError
from efficientbench.basics.plugins import installed, load, place_of, source_files, unknown

GROUP = "efficientbench.trials"


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    outside.lay_out(tmp_path, monkeypatch)
    return tmp_path


def refusal(place: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load("a key", place, callable, "a function")
    return str(caught.value)


def test_entry_points_are_listed_without_being_imported(package: Path) -> None:
    outside.install(package, GROUP, "trial", "hostile:NAME")
    assert installed(GROUP) == {"trial": "hostile:NAME"}
    assert place_of("trial", GROUP) == "hostile:NAME"
    assert place_of("trials", GROUP) is None
    assert "'trials': did you mean trial?; yours is" in unknown("thing", "trials", ["other"], GROUP, "a form")
    assert unknown("thing", "zzz", ["other"], GROUP, "a form") == (
        "there is no thing called 'zzz': ours are other, installed are trial; yours is a form"
    )
    assert not (package / "ran").exists()
    assert refusal("hostile:NAME") == "a key: hostile has no NAME"
    assert (package / "ran").exists()
    assert source_files("hostile:NAME") == [package / "hostile.py"]


def test_plugins_are_not_searched_for_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "lying_about.py").write_text("def function():\n    return 1\n")
    outside.install(here, GROUP, "lying", "lying_about:function")
    monkeypatch.chdir(here)
    assert installed(GROUP) == {}
    assert refusal("lying_about:function").startswith("a key: there is no module lying_about: install its package")


def test_a_plugin_that_cannot_be_loaded_is_refused_with_the_reason(package: Path) -> None:
    (package / "needy.py").write_text("import a_module_that_nobody_has")
    (package / "failing.py").write_text("1 / 0")
    (package / "lazy.py").write_text("def __getattr__(name):\n    raise OSError(name)\n\ndef function(): ...\n")
    assert refusal("needy:f") == "a key: needy needs a_module_that_nobody_has, which is not installed"
    assert refusal("my_package.nothing:f").startswith("a key: there is no module my_package.nothing: ")
    assert refusal("failing:f") == "a key: failing:f cannot be imported: ZeroDivisionError: division by zero"
    assert refusal("lazy:funktion") == "a key: lazy has no funktion; did you mean lazy:function?"
    assert refusal("my_package.window:VARIANT") == (
        "a key: my_package.window:VARIANT is of class AttentionVariant, not a function"
    )
