"""The matrix names 21 runs, and is refused where it is inconsistent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from efficientbench.config.errors import ConfigError
from efficientbench.config.matrix import EXPERIMENTS, load_matrix, load_smoke

SIZES = ("0.5B", "1.5B", "3B")


def test_the_21_runs() -> None:
    runs = load_matrix().runs
    by_suite = {suite: {run.name for run in runs if run.suite == suite} for suite in load_matrix().suites}
    assert by_suite == {
        "attention_variants": {f"{variant}_{size}" for variant in ("mqa", "gqa", "mla", "nsa") for size in SIZES},
        "positional_encodings": {
            f"{variant}_1.5B" for variant in ("rope", "absolute", "learnable_absolute", "relative", "none")
        },
        "moe_variants": {"dense_1.5B", "dense_3B", "moe_0.5Bx8", "moe_1.5Bx8"},
    }
    assert len(runs) == len({run.name for run in runs}) == 21


def test_a_published_model_stands_beside_them() -> None:
    matrix = load_matrix()
    assert [run.name for run in matrix.all_runs if run not in matrix.runs] == ["nanochat_d12"]
    assert matrix.run("nanochat_d12").suite == "published_models"


def test_every_size_has_a_smoke_size() -> None:
    assert set(load_smoke().sizes) == set(load_matrix().sizes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sizes: [", "cannot be read"),
        ("sizes: {}", "suites: Field required"),
        ("sizes: {../x: {}}\nvariants: {}\nsuites: {}", "sizes"),
        (
            "sizes: {s: {}}\nvariants: {v: {}}\nsuites: {all: [{variants: [w], sizes: [s, t]}]}",
            "suite 'all' names the variant 'w', which is not defined",
        ),
        (
            "sizes: {s: {}}\nvariants: {v: {}}\nsuites: {}\nfurther: {more: [{variants: [v], sizes: [t]}]}",
            "suite 'more' names the size 't', which is not defined",
        ),
    ],
)
def test_a_wrong_matrix_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_matrix(path)


def test_a_missing_matrix_says_where_the_package_works(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="works from a clone of its repository"):
        load_matrix(EXPERIMENTS / "gone.yaml")
    with pytest.raises(ConfigError, match=r"mine\.yaml is missing$"):
        load_matrix(tmp_path / "mine.yaml")
