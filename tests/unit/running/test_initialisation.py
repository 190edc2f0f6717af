"""With which checkpoint of another run a run begins, and which are refused: without a rank."""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.configs import tiny
from support.metrics_parts import make_record

from efficientbench.basics.errors import ConfigError
from efficientbench.config.budget import plan_budget
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokenizing.corpus import prepare_corpus
from efficientbench.metrics.analysis.conditions import differences
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.records.record import write_record
from efficientbench.running.branches import check_branch
from efficientbench.running.initialisation import check_tokenizer, initialised
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.resume import complete_record, usable
from efficientbench.training.checkpoints.hashing import fingerprint
from efficientbench.training.checkpoints.manifest import Manifest, before_attempt, checkpoint_folder, read_manifest

BASE = tiny("gqa_1.5B")
TOKENS = ["of a text"]


def save(run_folder: Path, step: int, config: RunConfig) -> Path:
    """A checkpoint as far as the parent process looks at it; the path of its manifest."""
    folder = checkpoint_folder(run_folder, step)
    folder.mkdir(parents=True)
    (folder / "tensors").write_bytes(b"of step %d" % step)
    files = {"tensors": fingerprint(folder / "tensors")}
    content = config.model_dump(mode="json")
    Manifest(step, False, "everything", content, TOKENS, {}, FORMULAS, 0, float(step), None, {}, files).write(folder)
    return folder / "manifest.json"


def save_run(folder: Path, tokenizer_fingerprint: str | None = None, config: RunConfig = BASE) -> Path:
    """The folder of a run with checkpoints after steps 2 and 4."""
    for step in (2, 4):
        save(folder, step, config)
    layout = Layout.of(config, 1, oversubscribe=True)
    job = Job(config, layout, plan_budget(config, 1000), (), folder, tokenizer_fingerprint=tokenizer_fingerprint)
    job.write(folder / "config.json")
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_run(tmp_path / "base")


def beginning_with(run: Path | str, *overrides: str) -> RunConfig:
    return tiny("gqa_1.5B", f"init.run={run}", *overrides)


def initialised_elsewhere(config: RunConfig) -> RunConfig:
    return initialised(config, OutputFolder(Path("elsewhere")))


def refused(config: RunConfig) -> str:
    with pytest.raises(ConfigError) as error:
        initialised_elsewhere(config)
    return str(error.value)


def test_an_initialisation_names_folder_step_and_checksum(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = initialised_elsewhere(beginning_with("base")).init
    manifest = base / "checkpoint" / "step_00000004" / "manifest.json"
    assert (found.run, found.step) == (str(base), 4)
    assert found.sha256 == hashlib.sha256(manifest.read_bytes()).hexdigest()
    earlier = initialised_elsewhere(beginning_with(base, "init.step=2")).init
    assert (earlier.step, earlier.sha256 == found.sha256) == (2, False)
    # What was found finds the same again.
    assert initialised_elsewhere(beginning_with(base, "init.step=4", f"init.sha256={found.sha256}")).init == found
    assert initialised_elsewhere(BASE) == BASE


def test_a_folder_that_is_no_checkpoint_is_named_and_refused(base: Path, tmp_path: Path) -> None:
    absent = tmp_path / "nowhere"
    assert refused(beginning_with(absent)).startswith(f"init.run: {absent}: no such folder; give that of a run")
    misspelt = base.with_name(f"{base.name}s")
    assert refused(beginning_with(misspelt)) == f"init.run: {misspelt}: no such folder; did you mean {base}?"
    assert "File name too long" in refused(beginning_with("x" * 300))
    assert "init.run: " in refused(beginning_with(base / "checkpoint"))
    assert f"{checkpoint_folder(base, 3)}: no such checkpoint; there: step_00000002, step_00000004" in refused(
        beginning_with(base, "init.step=3")
    )
    message = refused(beginning_with(base, f"init.sha256={'0' * 64}"))
    assert message.startswith(f"init.sha256: the manifest of {checkpoint_folder(base, 4)} has the SHA-256 ")
    tensors = checkpoint_folder(base, 2) / "tensors"
    tensors.write_bytes(b"cut")
    assert f"init.run: {tensors}: damaged, it has 3 bytes where" in refused(beginning_with(base, "init.step=2"))
    manifest = checkpoint_folder(base, 4) / "manifest.json"
    manifest.write_text("{}")
    message = refused(beginning_with(base))
    assert message.startswith(f"init.run: {base} has no checkpoint; {manifest}: damaged")
    assert str(tensors) in message


def test_a_checkpoint_of_another_model_is_refused_with_the_differing_keys(base: Path) -> None:
    message = refused(beginning_with(base, "model.ffn_hidden_size=96", "model.position.kind=none"))
    assert message.startswith(f"init.run: {base} is of another model than this run: ")
    assert "model.ffn_hidden_size is 80 there and 96 here" in message
    assert "model.position.kind is rope there and none here" in message
    assert "qkv_bias is True there and False here" in refused(beginning_with(base, "model.attention.qkv_bias=false"))
    other = ("model.init_std=0.1", "training.dtype=bf16", "parallel.tp=2", "training.seq_len=8", "training.seed=3")
    assert initialised_elsewhere(beginning_with(base, *other)).init.step == 4


def test_experts_may_be_balanced_otherwise_than_they_were(tmp_path: Path) -> None:
    # As an imported DeepSeek-V3 has it.
    scored, as_it_is = "model.moe.scores=sigmoid", "model.moe.bias_rate=0"
    before = tiny("moe_1.5Bx8", scored, as_it_is)
    save(tmp_path, 2, before)
    layout = Layout.of(BASE, 1, oversubscribe=True)
    Job(before, layout, plan_budget(BASE, 1000), (), tmp_path).write(tmp_path / "config.json")
    other = ("model.moe.auxiliary_loss=0.1", "model.moe.auxiliary_over=global")
    config = tiny("moe_1.5Bx8", f"init.run={tmp_path}", scored, *other, "model.moe.bias_rate=0.01")
    assert initialised_elsewhere(config).init.step == 2
    # Without a bias the weights would choose other experts.
    message = refused(tiny("moe_1.5Bx8", f"init.run={tmp_path}", scored))
    assert "model.moe.bias_rate is 0.0 there and None here" in message


def test_initialisation_from_the_runs_own_folder_is_refused(base: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"init.run: {base} is this run's own folder: set a label")):
        initialised(beginning_with(base), OutputFolder(base))
    assert initialised(beginning_with(base), OutputFolder(base / "another")).init.step == 4


def test_initialisation_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {number} of some text, times {number * number}\n" for number in range(200)))
    own, other = (prepare_corpus(text, None, tmp_path / "cache", size) for size in (300, 280))
    base = save_run(tmp_path / "base", own.tokenizer_fingerprint)
    config = beginning_with(base)
    with pytest.raises(ConfigError, match="^init.run: .*/tokenizer: missing, and so is the corpus"):
        check_tokenizer(config, [own])
    OutputFolder(base).keep_tokenizer(own.tokenizer_folder)
    check_tokenizer(config, [own])
    check_tokenizer(BASE, [other])
    with pytest.raises(ConfigError) as error:
        check_tokenizer(config, [other])
    assert str(error.value) == (
        f"data.tokenizer: the weights of init.run={base} were trained with another tokenizer than "
        f"{other.tokenizer_folder}: the same ids are other tokens; tokenize the text with "
        f"data.tokenizer={base / 'tokenizer'}"
    )


def test_an_attempt_resumes_only_if_it_was_initialised_with_the_same_weights(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = initialised_elsewhere(beginning_with(base))
    folder = OutputFolder(tmp_path / "run")
    save(folder.path, 2, config)
    moved = base.rename(tmp_path / "moved")
    found = usable(folder, initialised_elsewhere(beginning_with(moved)), TOKENS)
    assert found == checkpoint_folder(folder.path, 2)
    save(moved, 6, BASE)
    assert usable(folder, initialised_elsewhere(beginning_with(moved)), TOKENS) is None
    told = capsys.readouterr().out.splitlines()[-1]
    assert told == f"the earlier run in {folder.path} differs in init.sha256, init.step, and moves to previous/"


def test_a_complete_record_initialised_with_the_same_weights_is_kept(base: Path, tmp_path: Path) -> None:
    config = initialised_elsewhere(beginning_with(base))
    facts = {"status": "completed", "device_name": "a CPU", "formula_id": FORMULAS}
    write_record(make_record({**facts, "config": config.model_dump(mode="json")}), tmp_path / "record.json")

    def kept(wanted: RunConfig) -> bool:
        size = wanted.training.micro_batch_size
        return complete_record(OutputFolder(tmp_path), wanted, size, "a CPU") is not None

    assert kept(beginning_with(base))
    assert not kept(BASE)
    save(base, 6, BASE)
    assert not kept(beginning_with(base))
    assert kept(beginning_with(base, "init.step=4"))
    assert not kept(beginning_with(tmp_path / "absent"))


def test_runs_with_different_initialisations_are_not_compared(base: Path) -> None:
    begun, other = (
        make_record({"config": config.model_dump(mode="json")})
        for config in (initialised_elsewhere(beginning_with(base)), BASE)
    )
    (difference,) = differences(begun, other)
    assert str(difference).startswith("init: weights of step 4 (")
    assert (difference.condition, difference.other) == ("init", "random weights")
    assert differences(begun, begun) == []


WSD = ("training.lr_schedule=wsd", "training.lr_warmup_tokens=256", "measurement.warmup_steps=0")
"""A rise of two steps of 128 tokens, whatever the length."""


def branch_of(trunk: Path, *overrides: str) -> RunConfig:
    own = ("init.state=everything", "init.step=4", "training.steps=5", "measurement.min_steps=1")
    return initialised_elsewhere(beginning_with(trunk, *WSD, *own, *overrides))


def check(config: RunConfig, data: list[str] = TOKENS) -> None:
    check_branch(config, plan_budget(config, 1000), data)


@pytest.fixture
def trunk(tmp_path: Path) -> Path:
    config = tiny("gqa_1.5B", *WSD, "training.steps=40", "measurement.min_steps=1")
    return save_run(tmp_path / "trunk", config=config)


def test_a_branch_has_the_order_of_its_trunk_and_may_differ_in_length_and_fall(trunk: Path) -> None:
    config = branch_of(trunk)
    assert (config.init.state, config.data.order_tokens) == ("everything", 40 * 128)
    check(config)
    fall = (
        "training.lr_decay_fraction=0.5",
        "training.min_learning_rate=0",
        "training.steps=null",
        "training.tokens=1024",
    )
    check(branch_of(trunk, *fall, "label=short", "checkpoint.keep=5", "data.order_tokens=5120"))
    # Runs that take weights alone have an order of their own.
    assert initialised_elsewhere(beginning_with(trunk)).data.order_tokens is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["training.seed=9"],
            "init.state: everything continues .*trunk as it was: training.seed is 1234 there and 9 here",
        ),
        (
            ["training.learning_rate=0.5", "training.weight_decay=0"],
            "training.learning_rate is .* there and 0.5 here; training.weight_decay is 0.1 there and 0.0 here",
        ),
        (["data.split=[9,1,0]"], "data.split is .* there and .* here"),
        (["model.ffn_hidden_size=96"], "of another model than this run: model.ffn_hidden_size is 80 there and 96 here"),
        (["data.order_tokens=640"], "^data.order_tokens: is 5,120 in .*trunk and 640 here"),
        (["training.steps=41"], "^data.order_tokens: 5,120 are fewer than the run's 5,248 tokens"),
        (["training.steps=4"], "^init.step: 4 of the run's 4 steps are those of .*trunk: 1 more are needed"),
        (
            ["training.lr_decay_fraction=0.6"],
            "^init.step: the learning rate of step 3 is .* in .* and .* of 5 steps",
        ),
        (["training.lr_schedule=cosine"], "^init.step: the learning rate of step 3 .* before the rate of either falls"),
        (["training.lr_warmup_tokens=128"], "training.lr_warmup_tokens is 256 there and 128 here"),
        (["init.step=6"], "no such checkpoint; there: step_00000002, step_00000004"),
        (["training.objective=sft"], "init.state: everything is for training.objective=pretrain alone, not for sft"),
    ],
)
def test_what_differs_from_the_trunk_is_refused_by_key_with_both_values(
    trunk: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check(branch_of(trunk, *overrides))


def test_other_text_formulas_and_checkpoints_without_moments_are_no_trunk(trunk: Path, base: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokens of data.path is \['of a text'\] there and \['another'\] here"):
        check(branch_of(trunk), ["another"])
    folder = checkpoint_folder(trunk, 4)
    manifest = read_manifest(folder)
    alone = "^init.step: step_00000004 of .* holds weights alone"
    for change, message in (
        ({"formula": "older"}, f"formulas is older there and {FORMULAS} here"),
        ({"holds": "weights"}, f"{alone}, .* name another of step_00000002 "),
        ({"config": beginning_with(base, *WSD).model_dump(mode="json")}, "itself began with .*base: a trunk draws its"),
    ):
        (folder / "manifest.json").unlink()
        replace(manifest, **change).write(folder)
        with pytest.raises(ConfigError, match=message):
            check(branch_of(trunk))
    (folder / "manifest.json").unlink()
    replace(manifest, holds="weights").write(folder)
    shutil.rmtree(checkpoint_folder(trunk, 2))
    with pytest.raises(ConfigError, match=f"{alone}, .* and there is no other: checkpoint.at_tokens keeps some"):
        check(branch_of(trunk))


def test_a_branch_begins_with_what_its_trunk_learned_and_none_of_its_times(trunk: Path, base: Path) -> None:
    learned = {"tokens": 512, "losses": [2.0], "auxiliary_losses": [], "validation": None, "validations": []}
    progress = {**learned, "elapsed_s": 9.0, "resumed": [2], "lost": ["a line"], "goodput": {"start_s": 5.0}}
    folder = checkpoint_folder(trunk, 4)
    whole = replace(read_manifest(folder), progress=progress)
    (folder / "manifest.json").unlink()
    whole.write(folder)
    init = branch_of(trunk).init
    found = before_attempt(None, init)
    assert found is not None
    assert (found.step, found.progress) == (4, {**learned, "elapsed_s": 0.0, "goodput": {}})
    # An attempt that resumes has the times of the attempts before it.
    assert before_attempt(folder, init) == whole
    assert before_attempt(None, initialised_elsewhere(beginning_with(base)).init) is None
