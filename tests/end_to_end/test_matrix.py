"""Scripts of the matrix with --smoke: each learns, and has its row in one report."""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path

import pytest
from replicas.places import job_environment
from support.command_line import ROOT, efficientbench, record

from efficientbench.architecture.backbone import CHOICES
from efficientbench.config.load import resolve
from efficientbench.config.matrix import load_matrix
from efficientbench.data_tools.tokenizing.corpus import prepare_corpus
from efficientbench.data_tools.tokens.inspection import pair_statistics

pytestmark = pytest.mark.proof

MARGIN_NATS = 0.3
RUN_TIME_LIMIT_S = 540


def smallest_of_each() -> list[str]:
    """Return a run of each attention variant, of each pattern, of experts, and of each published model.

    The others have other positions, query groups or sizes: numerics/test_every_variant.py teaches each smoke model. The
    runs of chat.yaml begin with each other's weights.
    """
    names: dict[tuple[object, ...], str] = {}
    configs = [resolve(run.name, smoke=True) for run in load_matrix().all_runs if run.suite != "chat"]
    for config in sorted(configs, key=lambda config: config.model.hidden_size):
        model = config.model
        key = model.attention.kind, model.pattern, model.moe is not None, *(getattr(model, key) for key in CHOICES)
        names.setdefault(key, f"{config.variant}_{config.size}")
    return list(names.values())


RUNS = smallest_of_each()


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder that all runs share."""
    return tmp_path_factory.mktemp("suite")


@pytest.fixture(scope="module")
def unigram_nats(cache: str) -> float:
    """Loss of the best model without context on the smoke runs' text, in nats per token."""
    corpus = prepare_corpus(None, None, Path(cache), resolve("gqa_1.5B", smoke=True).data.trained_vocab_size)
    return pair_statistics(corpus.prefix, None).unigram_entropy_nats


@pytest.mark.parametrize("name", RUNS)
def test_each_smoke_script_lowers_its_loss(name: str, suite: Path, cache: str, unigram_nats: float) -> None:
    [script] = (ROOT / "experiments").glob(f"*/run_{name}.sh")
    done = subprocess.run(
        ["bash", str(script), "--smoke", f"output={suite}", f"data.cache={cache}"],
        env=job_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIME_LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = record(suite / f"{name}_smoke")
    loss = written["validation_loss"]
    print(f"{name}: validation loss {loss:.3f}, unigram entropy {unigram_nats:.3f}, {written['duration_s']:.0f} s")
    assert loss < unigram_nats - MARGIN_NATS


def test_one_report_has_a_row_for_each_run(suite: Path) -> None:
    efficientbench("report", str(suite), expect=0)
    rows = csv.DictReader((suite / "report.csv").read_text(encoding="utf-8").splitlines())
    assert [(row["run"], row["status"]) for row in rows] == [(name, "completed") for name in sorted(RUNS)]
