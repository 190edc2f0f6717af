"""Variants from outside this project: found by the name of their module, and run only for whom names them."""

from __future__ import annotations

import compileall
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import outside
from support.command_line import environment
from support.metrics_parts import make_record
from support.printed import on_one_line

from efficientbench.architecture import registry
from efficientbench.architecture.registry import ATTENTION, load, load_kinds
from efficientbench.architecture.variant import UndeclaredError
from efficientbench.basics.errors import ConfigError
from efficientbench.cli.launch_script import Machines, NamedRun
from efficientbench.config.budget import plan_budget
from efficientbench.config.combination_table import problems
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.doctor.variant.cases import BASE, LAYOUTS, SHAPES, tiny_models
from efficientbench.doctor.variant.check import undeclared
from efficientbench.export.hugging_face import export
from efficientbench.metrics.analysis.conditions import changed_keys
from efficientbench.metrics.analysis.repeats import group_repeats, load_group, model_identity
from efficientbench.metrics.records.record import read_record, write_record
from efficientbench.metrics.report.build import build_report
from efficientbench.model.kernels.biased_attention import BLOCKS
from efficientbench.model.kernels.names import kernel_names
from efficientbench.planning.plan import plan_anywhere
from efficientbench.planning.plan_table import print_plan
from efficientbench.profiling.profile import print_profile
from efficientbench.running.identity import undeclared as lacking
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.resume import may_not_resume
from efficientbench.running.trained import TrainedRun, changed_code
from efficientbench.sweep.machine import Machine
from efficientbench.sweep.selection import Request
from efficientbench.sweep.tasks import build_tasks

WINDOW, FUTURE = (f"model.attention.kind={outside.PACKAGE}.{name}:VARIANT" for name in ("window", "future"))
CPU = Machine("cpu", "a CPU", ("0",), None, 400_000_000, None)
KINDS = ", ".join(repr(kind) for kind in ATTENTION)


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    outside.lay_out(folder, monkeypatch)
    return folder


def smoke(*overrides: str) -> RunConfig:
    return resolve("gqa_1.5B", smoke=True, overrides=overrides)


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Layout.of(smoke(*overrides), 1, oversubscribe=True)
    return str(caught.value)


def test_an_external_variant_is_planned_by_its_formulas_without_torch(package: Path) -> None:
    config = smoke(WINDOW, "model.attention.window=16")
    assert config.model.attention.model_dump()["window"] == 16
    plan = plan_anywhere(config)
    own = 4 * (2 * (12 + 2) * 16 * 192 + 2 * 16)
    assert plan.parameters.attention == own
    printed = on_one_line(print_plan, plan)
    assert "keys read per query 14.8, dense 48.5" in printed
    assert "memory of a node's ranks n/a: model.attention.kind=my_package.window:VARIANT declares no formula" in printed
    code = (
        "import sys; sys.argv = ['efficientbench', 'plan', 'gqa_1.5B', '--smoke', sys.argv[1]]\n"
        "from efficientbench.cli.app import app\n"
        "try: app()\nexcept SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    paths = environment(PYTHONPATH=f"{package}:{environment()['PYTHONPATH']}")
    done = subprocess.run([sys.executable, "-c", code, WINDOW], env=paths, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr


def test_layouts_that_an_external_variant_does_not_declare_are_refused() -> None:
    assert "'my_package.window:VARIANT' does not declare that ranks can share it" in refusal(WINDOW, "parallel.tp=2")
    assert "does not share a sequence over ranks" in refusal(WINDOW, "parallel.cp=2")
    assert "does not declare that it can be computed again" in refusal(WINDOW, "training.recompute=selective")
    assert "does not declare that it takes 'relative'" in refusal(WINDOW, "model.position.kind=relative")
    assert "has kernels of its own" in refusal(WINDOW, "kernels.attention=flash")
    with pytest.raises(ConfigError, match="does not declare that ranks can share it"):
        NamedRun("gqa_1.5B", (WINDOW, "parallel.tp=2"), smoke=True).check(Machines(nodes=1, devices_per_node=2))
    assert Layout.of(smoke(WINDOW, "parallel.pp=2", "parallel.dp=2"), 1, oversubscribe=True).world_size == 4


def test_missing_formulas_are_absent_with_a_reason() -> None:
    plan = plan_anywhere(smoke(FUTURE))
    with pytest.raises(UndeclaredError, match="declares no formula for its parameters"):
        _ = plan.parameters
    assert plan.budget.tokens_per_parameter is None
    assert "parameters, total n/a: model.attention.kind=my_package.future:VARIANT declares" in on_one_line(
        print_plan, plan
    )
    with pytest.raises(ConfigError, match="20x is counted by the model's parameters"):
        plan_anywhere(smoke(FUTURE, "training.steps=null", "training.tokens=20x"))


def test_a_position_encoding_may_be_external() -> None:
    ramp = f"model.position.kind={outside.PACKAGE}.ramp:VARIANT"
    config = smoke(ramp, "model.position.slope=0.5")
    assert config.model.position.model_dump() == {"kind": "my_package.ramp:VARIANT", "slope": 0.5}
    assert plan_anywhere(config).parameters == plan_anywhere(smoke("model.position.kind=none")).parameters
    assert "the encoding 'my_package.ramp:VARIANT' does not share a sequence" in refusal(ramp, "parallel.cp=2")
    with pytest.raises(ConfigError, match="is of class AttentionVariant, not PositionVariant"):
        smoke("model.position.kind=my_package.window:VARIANT")


def test_an_external_encoding_without_declarations_is_not_treated_as_ours() -> None:
    stretch, slope = (f"model.position.kind={outside.PACKAGE}.encodings:{name}" for name in ("STRETCH", "SLOPE"))
    assert smoke(stretch, "model.head_dim=15").model.rotated_dim == 15  # only RoPE needs pairs
    names = kernel_names(smoke(stretch), "cpu")
    assert "rope" not in names
    assert names["position"] == "n/a: the positional encoding's declaration names no kernels"
    assert kernel_names(smoke(slope), "cpu")["attention"] == BLOCKS
    for config in (smoke(stretch), smoke(slope)):
        wanted = "parameters, total n/a: model.position.kind=my_package.encodings:"
        assert wanted in on_one_line(print_plan, plan_anywhere(config))
    assert "names of its kernels" in undeclared(smoke(stretch))


def test_the_profile_of_an_external_variant_has_its_operations_and_no_roofline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = smoke(f"model.attention.kind={outside.PACKAGE}.delta:VARIANT", "model.position.kind=none")
    folder = OutputFolder(tmp_path / "profile")
    folder.path.mkdir()
    layout = Layout.of(config, 1, oversubscribe=True)
    Job(config, layout, plan_budget(config, 1000), (folder.path / "none.json",), folder.path).write(folder.config)
    events = (
        ("training step", "user_annotation", 100),
        ("GatedDelta", "user_annotation", 80),
        ("aten::bmm", "cpu_op", 60),
    )
    traced = [{"ph": "X", "cat": cat, "name": name, "ts": 0, "dur": dur, "tid": 1} for name, cat, dur in events]
    folder.trace.write_bytes(gzip.compress(json.dumps({"traceEvents": traced}).encode()))
    print_profile(folder)
    printed = capsys.readouterr().out
    assert re.search(r"^attention +0.1 +60.0%", printed, re.MULTILINE)
    assert "roofline: n/a; model.attention.kind=my_package.delta:VARIANT declares no formula for" in printed


def test_a_run_too_short_to_show_a_variants_effect_is_reported() -> None:
    printed = on_one_line(print_plan, plan_anywhere(smoke(WINDOW, "model.attention.window=96")))
    assert "does not show in this run: its window of 96 tokens holds the whole sequence of 96" in printed


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no_such_package.window:VARIANT", "there is no module no_such_package: install its package"),
        ("my_package.nothing:VARIANT", "there is no module my_package.nothing"),
        ("my_package.window:VARIAN", "my_package.window has no VARIAN; did you mean my_package.window:VARIANT?"),
        ("my_package.window:attend", "is of class function, not AttentionVariant"),
        ("my_package.window", f"is not one of {KINDS}; a variant of your own is package.module:VARIANT"),
        ("gqaa", f"is not one of {KINDS}; did you mean gqa?"),
    ],
)
def test_an_invalid_external_kind_is_refused(kind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        smoke(f"model.attention.kind={kind}")


def test_a_wrong_key_names_the_right_one() -> None:
    with pytest.raises(ConfigError, match=re.escape("did you mean model.attention.window")):
        smoke(WINDOW, "model.attention.windw=4")
    with pytest.raises(ConfigError, match=re.escape("model.attention.kv_lora_rank: is no key of this kind")):
        smoke(WINDOW, "model.attention.kv_lora_rank=4")
    with pytest.raises(ConfigError, match=re.escape("model.attention.window: '0' does not fit")):
        smoke(WINDOW, "model.attention.window=0")


def test_an_entry_point_names_an_external_variant(package: Path) -> None:
    outside.install(package, "efficientbench.variants", "trial_window", "my_package.window:VARIANT")
    assert smoke("model.attention.kind=trial_window").model.attention.kind == "trial_window"


def test_the_check_of_an_external_variant_covers_its_declared_cases() -> None:
    kind = "my_package.window:VARIANT"
    load("attention", kind)
    models = tiny_models("attention", kind)
    configs = {name: resolve(BASE, smoke=True, overrides=(*SHAPES, *words)) for name, words in models.items()}
    windows = {name: config.model.attention.model_dump()["window"] for name, config in configs.items()}
    assert windows == {kind: 8, f"{kind}, two tokens": 2}
    refused = {name for name, keys in LAYOUTS.items() if problems(configs[kind], keys)}
    assert refused == {"tensor parallel", "sequence parallel", "context parallel", "selective recomputation"}


def test_an_external_matrix_adds_to_ours(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "variants: {window: {model: {attention: {kind: 'my_package.window:VARIANT', window: 16}}}}\n"
        "smoke: {variants: {window: {model: {attention: {window: 8}}}}}\n"
        "suites: {mine: [{variants: [window, gqa], sizes: [0.5B]}]}\n"
    )
    assert resolve("window_0.5B", matrix_file=path).model.attention.model_dump()["window"] == 16
    assert resolve("window_0.5B", smoke=True, matrix_file=path).model.attention.model_dump()["window"] == 8
    request = Request(matrix=path, only=("window",), axes=("model.attention.window=4,8",), smoke=True)
    four, eight = build_tasks(request, CPU, None)
    assert (four.refused, four.arguments[1:4]) == (None, ("window_0.5B", "--matrix", str(path)))
    assert {four.folder.path.name, eight.folder.path.name} == {
        "window_0.5B_smoke__window=4",
        "window_0.5B_smoke__window=8",
    }


def test_a_foreign_folder_runs_no_code(package: Path, tmp_path: Path) -> None:
    config, folder = smoke(), tmp_path / "runs" / "gqa_1.5B_smoke"
    folder.mkdir(parents=True)
    layout = Layout.of(config, 1, oversubscribe=True)
    Job(config, layout, plan_budget(config, 1000), (folder / "none.json",), folder).write(folder / "config.json")
    job = folder / "config.json"
    job.write_text(job.read_text().replace('"kind": "gqa"', '"kind": "hostile:VARIANT"'))
    hostile = {"model": {"attention": {"kind": "hostile:VARIANT"}}, "training": {"seed": 1234}}
    write_record(make_record({"config": hostile}), folder / "record.json")
    assert build_report(folder.parent).records
    assert load_group(folder)
    with pytest.raises(ConfigError, match="that names it runs: add model.attention.kind=hostile:VARIANT"):
        export(folder, tmp_path / "exported")
    with pytest.raises(ValueError, match="outside this project"):
        Job.read(job)
    assert not (package / "ran").exists()
    with pytest.raises(ConfigError, match="hostile has no VARIANT"):
        smoke("model.attention.kind=hostile:VARIANT")
    assert (package / "ran").exists()


def written(config: RunConfig, folder: Path) -> Path:
    """Write a run's job file and record into a folder, as a command leaves them."""
    folder.mkdir(parents=True)
    layout = Layout.of(config, 1, oversubscribe=True)
    Job(config, layout, plan_budget(config, 1000), (folder / "none.json",), folder).write(folder / "config.json")
    write_record(make_record({"config": config.model_dump(mode="json")}), folder / "record.json")
    return folder


def test_every_external_kind_of_a_pattern_is_named_for_commands_on_its_run(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = "my_package.future:VARIANT"
    folder = written(smoke(f"model.pattern=[{future},own]", WINDOW), tmp_path / "run")
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError) as caught:
        TrainedRun.read(folder)
    assert str(caught.value).endswith(f"add {WINDOW} model.attention.kind={future}")
    load_kinds(str(caught.value).partition("add ")[2].split())
    assert TrainedRun.read(folder).job.config.model.attention.kind == "my_package.window:VARIANT"


def test_an_external_kind_of_model_kinds_is_named_by_its_own_key(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "model.kinds.mine.attention.kind=my_package.window:VARIANT"
    folder = written(smoke("model.pattern=[mine,own]", key), tmp_path / "run")
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=f"that names it runs: add {key}$"):
        TrainedRun.read(folder)
    load_kinds([key])
    assert TrainedRun.read(folder).job.config.model.pattern == ("mine", "own")


def test_changed_code_of_an_external_variant_is_another_model(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, runs = "my_package.window:VARIANT", tmp_path / "runs"
    before = written(smoke(WINDOW), runs / "before")
    [(named, digest)] = smoke(WINDOW).model.code.items()
    assert (named, len(digest)) == (kind, 64)
    assert "code" not in smoke().model.model_dump()
    assert changed_code(TrainedRun.read(before).job.config.model) == []
    with pytest.raises(ConfigError, match="is decided by the files of your variants"):
        smoke("model.code={}")

    # Beside the declaration, in the package whose layer it may use.
    (package / "my_package" / "further.py").write_text("WIDTH = 2\n")
    registry._code.cache_clear()
    [warning] = changed_code(TrainedRun.read(before).job.config.model)
    assert f"the code of {kind} has changed since the run was trained" in warning
    after = written(smoke(WINDOW), runs / "after")
    one, other = (read_record(folder / "record.json") for folder in (before, after))
    assert changed_keys(one, other) == {f"model.code.{kind}": (digest, smoke(WINDOW).model.code[kind])}
    assert model_identity(one) != model_identity(other)
    assert len(group_repeats([one, other])) == 2
    assert may_not_resume(one.config, smoke(WINDOW)) == [f"model.code.{kind}"]
    plain = make_record({"config": smoke().model_dump(mode="json")})
    assert not [key for key in changed_keys(plain, one) if "code" in key]


def test_a_variant_without_a_source_file_has_no_hash_and_says_why(package: Path) -> None:
    compiled = compileall.compile_file(package / "my_package" / "window.py", legacy=True, quiet=2)
    assert compiled
    (package / "my_package" / "window.py").unlink()
    config = smoke(WINDOW)
    assert config.model.code == {"my_package.window:VARIANT": None}
    assert "no source file" in lacking(config)["model.code.my_package.window:VARIANT"]
