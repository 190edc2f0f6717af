"""What `export` refuses before it writes, and the model card."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
from support.command_line import efficientbench
from support.metrics_parts import make_record

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.config.budget import plan_budget
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.quantization import Quantization
from efficientbench.data_tools.tokenizing.corpus import prepare_corpus
from efficientbench.export.card import model_card
from efficientbench.export.hugging_face import export
from efficientbench.export.target_folder import claimed
from efficientbench.metrics.records.record_parts import DataSource, QualityPoint
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.trained import trained_config


def make_run(folder: Path, name: str = "gqa_1.5B", *overrides: str) -> Path:
    """The folder of a run that has not begun to train."""
    config = resolve(name, smoke=True, overrides=list(overrides))
    folder.mkdir(parents=True)
    layout = Layout.of(config, 1, 1, oversubscribe=True)
    Job(config, layout, plan_budget(config, 1000), (folder / "none.json",), folder).write(folder / "config.json")
    return folder


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(run: Path, folder: Path) -> str:
    """Why an export is refused; it must leave everything as it was."""
    before = files(folder.parent)
    with pytest.raises(ConfigError) as error:
        export(run, folder)
    assert files(folder.parent) == before
    return str(error.value)


def test_what_is_no_run(tmp_path: Path) -> None:
    out = tmp_path / "model"
    assert refused(tmp_path / "absent", out).startswith(f"{tmp_path / 'absent'}: no such folder; give that of a run")
    (tmp_path / "empty").mkdir()
    assert "is not the folder of a run: config.json is missing" in refused(tmp_path / "empty", out)
    for seed in (1234, 1235):
        make_run(tmp_path / "repeats" / f"seed_{seed}")
    assert "it holds repeats; give one of them: seed_1234, seed_1235" in refused(tmp_path / "repeats", out)
    run = make_run(tmp_path / "damaged")
    text = (run / "config.json").read_text()
    for damaged in ("", "[]", "{}", text[: len(text) // 2], text.replace('"layers"', '"leyers"')):
        (run / "config.json").write_text(damaged)
        assert f"{run / 'config.json'}: not the configuration of a run (" in refused(run, out)
    (run / "model").mkdir()
    tuned = f"{run} is the folder of a fine-tuning; a run is made of it by efficientbench "
    assert refused(run, out) == f"{tuned}import {run / 'model'} --output RUN"
    (run / "adapter").mkdir()
    assert refused(run, out) == f"{tuned}finetune merge {run} MODEL and efficientbench import MODEL --output RUN"
    long = Path("x" * 300)
    assert "File name too long; nothing was exported" in refused(tmp_path / long, out)
    assert not out.exists()


def test_a_folder_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    run, out = make_run(tmp_path / "run"), tmp_path / "model"
    out.write_text("a file")
    assert f"{out} is a file" in refused(run, out)
    out.unlink()
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    assert f"{out} is not empty (it holds thesis.tex); give a new or empty folder" in refused(run, out)
    (tmp_path / "link").symlink_to(out)
    assert f"{out} is not empty" in refused(run, tmp_path / "link")
    (out / "thesis.tex").unlink()
    (out / ".partial").mkdir()
    assert f"another command writes here, or was killed while it did; then remove {out / '.partial'}" in refused(
        run, out
    )


def test_a_tokenizer_that_is_lost_or_has_changed_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {number} of some text, times {number * number}\n" for number in range(200)))
    corpus = prepare_corpus(text, None, tmp_path / "cache", 300)
    run, out = make_run(tmp_path / "run"), tmp_path / "model"
    job = Job.read(run / "config.json")
    dataclasses.replace(job, corpora=(corpus.manifest,)).write(run / "config.json")
    assert refused(run, out) == f"{run} has no checkpoint"
    path = corpus.tokenizer_folder / "tokenizer.json"
    spec = json.loads(path.read_text())
    spec["model"]["merges"].pop()
    path.write_text(json.dumps(spec))
    assert refused(run, out) == (
        f"{corpus.tokenizer_folder} is not the tokenizer that the run was trained with: it has changed since"
    )
    shutil.rmtree(corpus.tokenizer_folder)
    with pytest.raises(DataError, match="which .* names, is missing"):
        export(run, out)
    corpus.manifest.unlink()
    assert refused(run, out).startswith(f"{run / 'tokenizer'}: missing, and so is the corpus that config.json names (")


def test_the_runs_copy_of_the_tokenizer_is_read(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {number} of some text, times {number * number}\n" for number in range(200)))
    corpus = prepare_corpus(text, None, tmp_path / "cache", 300)
    run, out = make_run(tmp_path / "run"), tmp_path / "model"
    job = Job.read(run / "config.json")
    OutputFolder(run).keep_tokenizer(corpus.tokenizer_folder)
    dataclasses.replace(job, tokenizer_fingerprint=corpus.tokenizer_fingerprint).write(run / "config.json")
    shutil.rmtree(tmp_path / "cache")
    run = run.rename(tmp_path / "moved")
    assert refused(run, out) == f"{run} has no checkpoint"
    path = run / "tokenizer" / "tokenizer.json"
    spec = json.loads(path.read_text())
    spec["model"]["merges"].pop()
    path.write_text(json.dumps(spec))
    assert refused(run, out) == (
        f"{run / 'tokenizer'} is not the tokenizer that the run was trained with: it has changed since"
    )


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path, needed_bytes: int) -> None:
        with claimed(folder, needed_bytes) as partial:
            (partial / "config.json").touch()
            raise ZeroDivisionError

    with pytest.raises(ConfigError, match=r"no space left in .*: the weights take 1,000,000,000,000\.0 MB"):
        fail(tmp_path / "a" / "b", 10**18)
    assert not (tmp_path / "a").exists()
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "new", tmp_path / "empty"):
        with pytest.raises(ZeroDivisionError):
            fail(folder, 0)
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]


@pytest.mark.parametrize("name", ["nsa_1.5B", pytest.param("relative_1.5B", marks=pytest.mark.proof)])
def test_what_has_no_counterpart_ends_with_exit_code_2(name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", name)
    done = efficientbench("export", str(run), "--to", "hf", str(tmp_path / "model"), expect=2)
    assert re.fullmatch(r"error: model\..*this model has no exact counterpart: .*\n", done.stderr)
    assert (done.stdout, (tmp_path / "model").exists()) == ("", False)


def test_the_card_tells_what_is_recorded() -> None:
    config = resolve("gqa_1.5B", overrides=["training.seed=7"])
    curve = [
        QualityPoint(step=step, tokens=1, loss=loss, loss_se=None, measured_tokens=1, train_s=1.0, energy_j=None)
        for step, loss in ((10, 3.25), (20, 3.125))
    ]
    record = make_record({"quality_curve": curve, "al_s": 0.5, "tokens_per_s": 1234.0})
    assert {
        "| class | Qwen2ForCausalLM |",
        "| trained for | 10 of 20 steps, 327,680 tokens |",
        "| validation loss of these weights, nats | 3.25 |",
        "| whole run: tokens/s | 1,234 |",
        "| whole run: AEC W | n/a: not part of this test |",
    } <= set(model_card(config, "qwen2", 10, 20, record).splitlines())
    assert "n/a: the run validated after steps 10, 20, not after step 15" in model_card(config, "qwen2", 15, 20, record)
    assert "| record | n/a: the run has no record.json" in model_card(config, "qwen2", 10, 20, None)
    packed = model_card(config, "qwen2", 10, 20, record, quantization=Quantization(weights="int4", group=64))
    assert "| linear layers | int4\\_g64, packed; the figures below are of the full width |" in packed


def test_the_card_says_where_the_weights_came_from() -> None:
    config = resolve("gqa_1.5B", overrides=["init.run=/home/me/base", "init.step=40"])
    assert "| began with the weights of | base after step 40 |" in model_card(config, "qwen2", 10, 20, None)
    card = model_card(resolve("gqa_1.5B"), "qwen2", 0, 0, None, imported="Tiny (Qwen2ForCausalLM)")
    assert "| imported from | Tiny (Qwen2ForCausalLM) |" in card
    assert "A language model that EfficientBench imported, as run `gqa_1.5B`" in card
    assert not re.search("trained for|Training put|when it ends", card)


def test_names_in_a_card_are_plain_text() -> None:
    hostile = "/home/me/x](http://evil) | `a` <script>alert(1)</script>\n---\n# heading\x1b[2J"
    source = DataSource(source=hostile, weight=1.0, documents=1, tokens=1, fingerprint="0", tokenizer_fingerprint="0")
    record = make_record({"data": [source], "device_name": hostile})
    card = model_card(resolve("gqa_1.5B"), "qwen2", 1, 1, record, [hostile])
    assert re.search(r"<script>|\x1b|\]\(http", card.replace("\\]", "")) is None
    lines = card.splitlines()
    assert (lines.count("---"), sum(line.startswith("#") for line in lines)) == (2, 1)
    assert {re.sub(r"\\.", "", line).count("|") for line in lines if line.startswith("|")} == {3}
    # Of a path the last part alone.
    assert "/home/me" not in next(line for line in lines if line.startswith("| data |"))


def test_weights_from_before_the_embedding_had_a_factor_are_exported_without() -> None:
    content = resolve("gqa_1.5B").model_dump(mode="json")
    assert trained_config(content).model.embedding_multiplier == pytest.approx(1536**0.5)
    del content["model"]["embedding_multiplier"]
    assert trained_config(content).model.embedding_multiplier == 1
