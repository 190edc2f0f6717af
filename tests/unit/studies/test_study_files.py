"""The files of an answer: JSON that can be read again, a whole page, and the links that lead to it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.command_line import environment
from support.metrics_parts import make_record, printed
from support.pages import Parsed
from support.simulated_studies import LAWS
from support.studies import study
from support.study_schema import check_study
from support.tiny_studies import write_record, write_study
from typer.testing import CliRunner

import efficientbench
from efficientbench.basics.errors import ConfigError
from efficientbench.cli.app import app
from efficientbench.metrics.records.record import RECORD_NAME
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.study_link import study_of
from efficientbench.studies.answer import Answer, answer
from efficientbench.studies.page import parts, print_answer
from efficientbench.studies.record import ANSWER, page, write_answer
from efficientbench.studies.search import search
from efficientbench.studies.study import ANYWHERE, Question, as_found, planned, tell

ATTACK = "</script><script>alert(1)</script>\"'&|"


@pytest.fixture(scope="module")
def found() -> Answer:
    whole = study(replace(LAWS, gap=8), Path("runs") / ATTACK)
    return answer(replace(whole, searches={**whole.searches, ("mla", "50M"): {3e-3: 5.9, 6e-3: float("inf")}}))


def test_the_json_is_read_again_as_the_same_answer_and_has_the_keys_of_its_schema(
    found: Answer, tmp_path: Path
) -> None:
    written = write_answer(found, tmp_path)
    assert [path.name for path in written] == ["study.json", "study.md", "study.html"]
    text = written[0].read_text(encoding="utf-8")
    assert ANSWER.validate_json(text) == found
    content = json.loads(text)
    assert content["edition"] == 4
    assert content["findings"]["named"] == "mla"
    assert content["searches"]["mla_50M"] == {"0.003": 5.9, "0.006": None}
    check_study(content)


def test_the_page_is_whole_and_safe_and_has_its_plots(found: Answer) -> None:
    text = page(found)
    parsed = Parsed(text)
    assert "<script>alert" not in text
    assert parsed.text["h1"] == ["gqa, mla, nsa at 1.5B, 30.0B tokens, matched by FLOPs"]
    assert parsed.text["h2"] == [part.title for part in parts(found)]
    # Differences by size, and the searches at two sizes.
    assert len(parsed.all("figure")) == 3
    anchors = {attributes["id"] for _, attributes in parsed.elements if attributes.get("id")}
    assert {f"#{anchor}" for anchor in anchors} >= {link["href"] for link in parsed.all("a")}
    assert "Pretrain mla" in text


def test_a_study_without_a_verdict_has_a_page_too() -> None:
    whole = study(LAWS)
    empty = answer(replace(whole, runs=tuple(replace(each, state="missing", record=None) for each in whole.runs)))
    assert empty.findings is None
    assert "No verdict: gqa, the baseline, has no place: 0 sizes" in page(empty)
    ANSWER.validate_json(ANSWER.dump_json(empty))


def test_the_terminal_has_the_cautions_and_the_answer_alone(found: Answer) -> None:
    text = printed(print_answer, found)
    assert text.index("Note: The lowest loss lies at an end of the rates") < text.index("Pretrain mla")
    assert "Every run" not in text


def test_a_study_from_python_returns_what_its_json_has(tmp_path: Path) -> None:
    rates = {name: dict.fromkeys(("8k", "16k", "32k"), 0.003) for name in ("gqa", "mla")}
    file = write_study(tmp_path / "mine.yaml", learning_rate=rates)
    suite = tmp_path / "suite"
    of = planned(Question(file, (f"output={suite}",)), ANYWHERE, None, dry_run=True)
    speed = {"tokens_per_s": 1000.0, "flops_per_token": 50_000.0, "devices": 1}
    for number, run in enumerate(of.runs(search(of).rates)):
        write_record(run.task, (3.0 if run.variant == "gqa" else 2.9) - 0.01 * number, **speed)
    # All is trained: both calls answer alone.
    trained = efficientbench.study(str(file), f"output={suite}", "device=cpu")
    assert trained.findings is not None
    assert trained.findings.named == "mla"
    assert ANSWER.validate_json((suite / "study.json").read_text(encoding="utf-8")) == trained
    assert efficientbench.study(file, f"output={suite}", train=False) == trained
    with pytest.raises(AttributeError, match="module 'efficientbench' has no attribute 'stduy'"):
        _ = efficientbench.stduy


def test_an_answer_is_not_replaced_by_one_of_fewer_runs_because_a_key_is_another(tmp_path: Path) -> None:
    rates = {name: dict.fromkeys(("8k", "16k", "32k"), 0.003) for name in ("gqa", "mla")}
    file, suite = write_study(tmp_path / "mine.yaml", learning_rate=rates), tmp_path / "suite"
    keys = (f"output={suite}", "data.path=a text", "data.trained_vocab_size=300")
    of = planned(Question(file, keys), ANYWHERE, None, dry_run=True)
    for number, run in enumerate(of.runs(search(of).rates)):
        write_record(run.task, 3.0 - 0.01 * number)
    assert efficientbench.study(file, *keys, train=False).complete == 12
    before = {path.name: path.read_bytes() for path in suite.glob("study.*")}
    assert len(before) == 3
    for given in (
        [str(file), "--verdict", *keys[:1]],
        [str(file), "--verdict", *keys[:1], "data.trained_vocab_size=300"],
    ):
        done = CliRunner().invoke(app, ["study", *given])
        assert isinstance(done.exception, ConfigError)
        words = "'data.path=a text'" + (" data.trained_vocab_size=300" if len(given) == 3 else "")
        assert str(done.exception) == (
            f"study: {suite} keeps its answer of 12 complete runs, since 0 of 12 were trained with the keys of this "
            f"call: give the keys {words}, or output=FOLDER for a study of its own"
        )
    with pytest.raises(ConfigError, match="keeps its answer of 12 complete runs"):
        efficientbench.study(file, *keys[:1], train=False)
    # Other budgets are the file's.
    write_study(file, learning_rate=rates, tokens_per_parameter=[4, 8])
    with pytest.raises(
        ConfigError, match=r"the file's study sets another training\.lr_warmup_tokens: restore that, or"
    ):
        efficientbench.study(file, *keys, train=False)
    assert {path.name: path.read_bytes() for path in suite.glob("study.*")} == before


def test_an_answer_is_not_replaced_by_one_of_fewer_seeds(tmp_path: Path) -> None:
    rates = {name: dict.fromkeys(("8k", "16k", "32k"), 0.003) for name in ("gqa", "mla")}
    file, suite = write_study(tmp_path / "mine.yaml", learning_rate=rates, seeds=2), tmp_path / "suite"
    of = planned(Question(file, (f"output={suite}",)), ANYWHERE, None, dry_run=True)
    runs = of.runs(search(of).rates)
    for number, run in enumerate(runs):
        write_record(run.task, 3.0 - 0.01 * number)
    given = ["study", str(file), "--verdict", f"output={suite}"]
    assert CliRunner().invoke(app, given).exit_code == 0
    before = {path.name: path.read_bytes() for path in suite.glob("study.*")}
    done = CliRunner().invoke(app, [*given, "--seeds", "1"])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == (
        f"study: {suite} keeps its answer of 24 complete runs, since this call's study has 12 of 12: restore seeds: 2, "
        "or output=FOLDER for a study of its own"
    )
    assert {path.name: path.read_bytes() for path in suite.glob("study.*")} == before
    # The same question about fewer records, and one of more runs, are answered anew.
    runs[-1].task.folder.record.unlink()
    assert efficientbench.study(file, f"output={suite}", train=False).complete == 23
    assert efficientbench.study(file, f"output={suite}", seeds=3, train=False).complete == 23


def test_an_answer_is_written_though_its_reader_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, suite = write_study(tmp_path / "mine.yaml"), tmp_path / "suite"
    suite.mkdir()
    monkeypatch.setattr("efficientbench.studies.study.print_answer", Mock(side_effect=BrokenPipeError))
    with pytest.raises(BrokenPipeError):
        tell(as_found(Question(file, (f"output={suite}",))))
    assert (suite / "study.json").is_file()


def test_the_package_imports_nothing_until_it_is_called() -> None:
    code = "import efficientbench, sys; print([name for name in sys.modules if name.startswith('efficientbench.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout.strip() == "[]"


def test_reports_and_comparisons_lead_to_the_study(tmp_path: Path) -> None:
    folders = [tmp_path / "study" / name / f"seed={seed}" for name in ("gqa_50M", "mla_50M") for seed in (1, 2)]
    for folder in folders:
        folder.mkdir(parents=True)
        variant, seed = folder.parent.name.partition("_")[0], int(folder.name[-1])
        values = {"variant": variant, "run": folder.parent.name, "size": "50M", "seed": seed, "tokens_per_s": 1e5}
        make_record({**values, "validation_loss": 3.0}).write(folder / RECORD_NAME)
    assert study_of(*folders) is None
    assert build_report(tmp_path / "study").study == ""
    (tmp_path / "study" / "study.json").write_text("{}", encoding="utf-8")
    assert study_of(folders[0], folders[2]) == tmp_path / "study" / "study.html"
    assert study_of(folders[0], tmp_path) is None
    report = build_report(tmp_path / "study")
    assert report.study == "study.html"
    assert "[study.html](<study.html>)" in (tmp_path / "study" / "report.md").read_text(encoding="utf-8")
    page = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    assert '<a href="study.html">' in page
    assert page.index('<section id="study">') < page.index('<section id="answers">')
    compared = CliRunner().invoke(app, ["compare", str(folders[0].parent), str(folders[2].parent)])
    assert compared.exit_code == 0, compared.output
    assert f"study of these runs: {tmp_path / 'study' / 'study.html'}" in compared.output
