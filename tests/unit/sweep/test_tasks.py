"""Which runs a sweep has, what they are called, and that no name leaves the output folder or reaches a shell."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from efficientbench.basics.errors import ConfigError
from efficientbench.cli.launch_script import Machines, named_runs
from efficientbench.cli.sweep import sweep
from efficientbench.config.load import resolve
from efficientbench.config.matrix import RunName, load_matrix
from efficientbench.costs.model import count_parameters
from efficientbench.sweep.combinations import label_of, parse_axes
from efficientbench.sweep.dry_run import print_dry_run
from efficientbench.sweep.machine import Machine
from efficientbench.sweep.selection import Request, select
from efficientbench.sweep.tasks import build_tasks

CPU = Machine("cpu", "a CPU", ("0",), None, 400_000_000, None)
GPUS = Machine("cuda", "NVIDIA A100-SXM4-80GB", tuple("01234567"), 80 * 10**9, 1_500_000_000, "CUDA_VISIBLE_DEVICES")
HOSTILE = ("$(touch pwned)", "../..", "a'b\"c", "x\ny", "; rm -rf .", "`id`", "con", "A" * 300, " ", "é/ü", "..", "-rf")
SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=~-]*[A-Za-z0-9]")


@pytest.mark.parametrize(
    ("only", "sizes", "wanted"),
    [
        ((), (), lambda run: run in load_matrix().runs),
        (("attention",), (), lambda run: run.suite == "attention_variants"),
        (("attention_variants",), ("0.5B",), lambda run: (run.suite, run.size) == ("attention_variants", "0.5B")),
        (("moe",), (), lambda run: run.name in ("moe_0.5Bx8", "moe_1.5Bx8")),
        (("gqa", "moe_variants"), ("1.5B", "1.5Bx8"), lambda run: run.name in ("gqa_1.5B", "dense_1.5B", "moe_1.5Bx8")),
        (("gqa_3B",), (), lambda run: run.name == "gqa_3B"),
        (("nanochat", "moe"), (), lambda run: run.name in ("nanochat_d12", "moe_0.5Bx8", "moe_1.5Bx8")),
        (("published",), (), lambda run: run.suite == "published_models"),
    ],
)
def test_names_choose_runs(only: tuple[str, ...], sizes: tuple[str, ...], wanted: Callable[[RunName], bool]) -> None:
    matrix = load_matrix()
    names = [run.name for run in select(matrix, only, sizes)]
    assert len(names) == len(set(names))
    assert {*names} == {run.name for run in matrix.all_runs if wanted(run)} != set()


@pytest.mark.parametrize(
    ("only", "sizes", "message"),
    [
        (("atention",), (), "did you mean attention?"),
        (("$(id)",), (), "'$(id)'"),
        ((), ("0,5b",), "did you mean 0.5B?"),
        (("moe",), ("3B",), "no chosen run has the size 3B; available sizes: 0.5Bx8, 1.5Bx8"),
    ],
)
def test_unknown_names_of_a_sweep_are_refused(only: tuple[str, ...], sizes: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        select(load_matrix(), only, sizes)


def test_axes_split_at_commas_outside_brackets() -> None:
    axes = parse_axes(["training.seq_len=1024,2048,1024", "data.split=[99,1,0],[98,2,0]"])
    assert list(axes.items()) == [("data.split", ("[99,1,0]", "[98,2,0]")), ("training.seq_len", ("1024", "2048"))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training.seq_len", "an axis is written key=value,value"),
        ("warmup_steps=1", "no key; set training.lr_warmup_tokens or lr_warmup_fraction"),
        ("training.seq_len=1,,2", "has an empty value"),
        ("data.split=[99,1", "brackets are not closed"),
        ("data.split=]99[", "brackets are not closed"),
        ("output=a,b", "cannot be swept"),
        ("label=a", "cannot be swept"),
        ("variant=mqa", "is decided by the run's name"),
    ],
)
def test_invalid_axes_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_axes([text])


def test_a_combination_has_one_name_in_every_spelling() -> None:
    def label(*words: str) -> str | None:
        return label_of(dict(word.split("=") for word in words), resolve("gqa_0.5B", False, words))

    assert label("training.seq_len=2048", "parallel.tp=2") == "tp=2__seq_len=2048"
    assert label("parallel.tp=2", "training.seq_len=02048") == "tp=2__seq_len=2048"
    assert label("training.learning_rate=1e-3") == label("training.learning_rate=0.0010") == "learning_rate=0.001"
    assert label("parallel.sp=yes", "parallel.tp=2") == "sp=true__tp=2"
    # Two sections have a kind: the name says of which.
    assert label("model.position.kind=alibi") == "position.kind=alibi"
    assert label("data.path=A") != label("data.path=a")


@given(st.text(min_size=1).filter(lambda text: "\0" not in text))
def test_any_value_gives_a_valid_file_name(value: str) -> None:
    label = label_of({"data.path": value, "data.tokenizer": value * 3}, None, None)
    assert label is not None
    assert SAFE.fullmatch(label)
    assert len(label) <= 100
    # Windows and macOS do not tell capitals apart.
    other = label_of({"data.path": value.swapcase(), "data.tokenizer": value * 3}, None, None)
    assert (label.lower() == other.lower()) == (value == value.swapcase())  # type: ignore[union-attr]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_stay_single_arguments_inside_the_output_folder(value: str, tmp_path: Path) -> None:
    request = Request(only=("gqa_0.5B",), axes=(f"data.path={value}",), overrides=(f"output={tmp_path}",), smoke=True)
    # The text is not there, which a dry run says and a sweep refuses.
    (task,) = build_tasks(request, CPU, None, dry_run=True)
    assert (f"data.path={value}" in task.arguments, task.folder.path.parent) == (True, tmp_path)
    assert SAFE.fullmatch(task.id)
    assert len(f"run_{task.id}.lock") < 255


def test_every_run_has_its_own_folder_and_command() -> None:
    request = Request(only=("gqa", "mqa"), sizes=("0.5B",), axes=("training.seq_len=64,128",), smoke=True, repeat=2)
    tasks = build_tasks(request, CPU, None)
    assert len(tasks) == len({task.folder.path for task in tasks}) == len({task.configuration for task in tasks}) == 8
    name, folder, arguments = tasks[0].id, tasks[0].folder.path, tasks[0].arguments
    assert (name, folder.name) == ("mqa_0.5B_smoke__seq_len=64__seed_1234", "seed_1234")
    assert folder.parent.name == "mqa_0.5B_smoke__seq_len=64"
    assert arguments == (
        *("run", "mqa_0.5B", "--smoke", "training.seq_len=64", "label=seq_len=64"),
        *("--repeat", "1", "training.seed=1234"),
    )


def test_smoke_runs_of_a_line_have_one_length(capsys: pytest.CaptureFixture[str]) -> None:
    def lengths(*words: str, machine: Machine = CPU) -> list[tuple[int, int]]:
        request = Request(only=("gqa", "nsa"), sizes=("0.5B",), overrides=words, smoke=True)
        tasks = build_tasks(request, machine, None, dry_run=True)
        trainings = [task.config.training for task in tasks if task.config is not None]
        return [(each.seq_len, each.global_batch_size) for each in trainings]

    assert lengths() == [(768, 1)] * 2
    assert "training.seq_len: 768, of nsa_0.5B_smoke, also for gqa_0.5B_smoke\n" in capsys.readouterr().err
    assert lengths("seq_len=128", "training.global_batch_size=2") == [(128, 2)] * 2
    # NSA's batch is for one rank: on two, the others keep theirs.
    assert lengths("parallel.dp=2", machine=replace(CPU, devices=("0", "1"))) == [(96, 8), (768, 1)]
    # A script for other nodes has the same lengths.
    request = Request(only=("gqa", "nsa"), sizes=("0.5B",), smoke=True)
    lengthened = {f"training.{key}" for key in ("seq_len=768", "micro_batch_size=1", "global_batch_size=1")}
    assert lengthened <= set(named_runs(request, Machines(1, 1))[0].overrides)
    assert lengthened.isdisjoint(named_runs(request, Machines(1, 2))[0].overrides)


def test_a_variant_of_ones_own_has_the_length_of_the_baselines_line(tmp_path: Path) -> None:
    matrix = tmp_path / "mine.yaml"
    own = "mine: {model: {attention: {kind: mla}, position: {kind: none}}}"
    matrix.write_text(f"variants: {{{own}}}\nsuites: {{ours: [{{variants: [gqa, nsa, mine], sizes: [0.5B]}}]}}\n")
    tasks = build_tasks(Request(matrix, smoke=True), CPU, None, dry_run=True)
    assert [task.config.training.seq_len for task in tasks if task.config is not None] == [768] * 3


def test_tokens_by_parameters_are_one_budget_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ("training.steps=null", "training.tokens=20x")
    request = Request(only=("attention", "rope"), sizes=("0.5B", "1.5B"), overrides=lengths, smoke=True)
    tasks = {task.id: task for task in build_tasks(request, CPU, None)}
    for size in ("0.5B", "1.5B"):
        planned = [tasks[f"{variant}_{size}_smoke"].planned() for variant in ("gqa", "mqa", "mla", "nsa")]
        assert len({each.tokens for each in planned if each is not None}) == 1
    baseline, other = tasks["gqa_0.5B_smoke"], tasks["mla_0.5B_smoke"]
    assert baseline.config is not None
    tokens = 20 * count_parameters(baseline.config.model).total
    assert baseline.config.training.tokens == "20x"
    assert other.config is not None
    assert other.config.training.tokens == tokens
    assert f"training.tokens={tokens}" in other.arguments
    told = f"training.tokens: 20x of gqa_0.5B_smoke is {tokens:,}, also for mqa_0.5B_smoke, mla_0.5B_smoke, "
    assert told in capsys.readouterr().err


def test_sizes_are_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ("training.steps=null", "training.tokens=20x")
    request = Request(only=("gqa_0.5B",), axes=("model.layers=2,4",), overrides=lengths, smoke=True)
    assert [task.config.training.tokens for task in build_tasks(request, CPU, None) if task.config] == ["20x"] * 2
    request = Request(only=("gqa_0.5B",), axes=("model.attention.query_groups=1,2",), overrides=lengths, smoke=True)
    one, two = [task.planned() for task in build_tasks(request, CPU, None)]
    assert one is not None
    assert two is not None
    assert one.tokens == two.tokens


def test_runs_with_different_initialisations_have_different_names(tmp_path: Path) -> None:
    axes = ("init.run=/base/one,/base/two", "training.lr_schedule=linear,trapezoid")
    request = Request(only=("gqa_0.5B",), axes=axes, smoke=True, overrides=(f"output={tmp_path}",))
    tasks = build_tasks(request, CPU, None)
    assert len(tasks) == len({task.folder.path for task in tasks}) == len({task.configuration for task in tasks}) == 4


def test_optimizers_are_an_axis_of_every_objective(tmp_path: Path) -> None:
    axis, output = "training.optimizer=adamw,muon", f"output={tmp_path}"
    tasks = build_tasks(Request(only=("gqa_0.5B",), axes=(axis,), overrides=(output,), smoke=True), CPU, None)
    told = [(each.id, each.config.parallel.distributed_optimizer) for each in tasks if each.config is not None]
    assert told == [("gqa_0.5B_smoke__optimizer=adamw", True), ("gqa_0.5B_smoke__optimizer=muon", False)]
    rewarded = (output, "init.run=/runs/sft", "data.path=/chat", "rl.questions=/rows", "rl.test_every=0")
    request = Request(only=("rl_d8",), axes=(axis, "rl.samples=2,4"), overrides=rewarded, smoke=True)
    tasks = build_tasks(request, CPU, None, dry_run=True)
    assert [task.refused for task in tasks] == [None] * 4
    assert len({task.folder.path for task in tasks}) == len({task.configuration for task in tasks}) == 4


def test_a_sweep_reads_another_matrix(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "sizes: {tiny: {model: {layers: 2, hidden_size: 48, heads: 4, head_dim: 12, ffn_hidden_size: 80, "
        "vocab_size: 131}}}\n"
        "variants: {narrow: {model: {attention: {query_groups: 1}}}}\n"
        "suites: {mine: [{variants: [narrow], sizes: [tiny]}]}\n"
    )
    (task,) = build_tasks(Request(matrix=file), CPU, None)
    assert task.arguments == ("run", "narrow_tiny", "--matrix", str(file))
    assert task.config is not None
    assert task.config.model.layers == 2
    with pytest.raises(ConfigError, match=r"gone\.yaml is missing"):
        build_tasks(Request(matrix=tmp_path / "gone.yaml"), CPU, None)


def test_impossible_runs_are_refused_and_others_are_kept() -> None:
    request = Request(only=("gqa_0.5B",), axes=("parallel.tp=1,4",), smoke=True)
    one, four = build_tasks(request, CPU, None)
    assert one.refused is None
    assert four.refused is not None
    assert four.refused.kind == "mistake"
    with pytest.raises(ConfigError, match="4 does not divide the 14 heads"):
        build_tasks(Request(only=("gqa_0.5B",), axes=("parallel.tp=4",), smoke=True), CPU, None)


def test_a_sweep_whose_runs_are_all_refused_says_each_reason_once_with_its_runs() -> None:
    request = Request(only=("gqa", "mla"), sizes=("0.5B",), axes=("training.seq_len=32,64",), smoke=True)
    with pytest.raises(ConfigError) as caught:
        build_tasks(replace(request, overrides=("parallel.tp=3",)), CPU, None)
    heads = "parallel.tp: 3 does not divide the 14 heads (model.heads)"
    assert [problem.splitlines()[:2] for problem in caught.value.problems] == [
        [f"{name}_0.5B_smoke__seq_len=32, {name}_0.5B_smoke__seq_len=64: {count} problems:", f"  {heads}"]
        for name, count in (("gqa", 3), ("mla", 2))
    ]


@pytest.mark.parametrize("by_repeat", [True, False])
def test_a_dry_run_prints_each_refusal_once_with_its_seeds(by_repeat: bool, capsys: pytest.CaptureFixture[str]) -> None:
    axes = ("parallel.tp=1,4", *(() if by_repeat else ("training.seed=1,2",)))
    overrides = ("training.seed=1",) if by_repeat else ()
    request = Request(only=("gqa_0.5B",), axes=axes, overrides=overrides, smoke=True, repeat=2 if by_repeat else None)
    tasks = build_tasks(request, CPU, None)
    print_dry_run(tasks, ["refused" if task.refused else "queued" for task in tasks], [None] * len(tasks), 1, [], CPU)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "does not divide the 14 heads" in line]
    names = [f"gqa_0.5B_smoke__tp=4__{'seed_' if by_repeat else 'seed='}{seed}" for seed in (1, 2)]
    assert line.startswith(f"{', '.join(names)}: refused (mistake): ")


def test_a_dry_run_prints_a_refusal_once_for_all_runs_that_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    request = Request(only=("gqa",), sizes=("0.5B",), axes=("parallel.tp=1,4", "training.seq_len=32,64"), smoke=True)
    tasks = build_tasks(request, CPU, None)
    print_dry_run(tasks, ["refused" if task.refused else "queued" for task in tasks], [None] * len(tasks), 1, [], CPU)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "does not divide the 14 heads" in line]
    assert line.startswith("gqa_0.5B_smoke__tp=4__seq_len=32, gqa_0.5B_smoke__tp=4__seq_len=64: refused (mistake): ")


def test_a_dry_run_says_how_often_the_text_is_read_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("efficientbench.sweep.sweep.find_machine", lambda device: CPU)
    text, missing = tmp_path / "mine.txt", tmp_path / "typo.txt"
    text.write_text("word " * 20_000)
    words = [f"output={tmp_path / 'out'}", "training.tokens=4M", "data.split=[3,1,0]"]
    with pytest.raises(typer.Exit):
        sweep(arguments=words, only="gqa,mla", sizes="0.5B", smoke=True, data=str(text), dry_run=True, repeat=2)
    lines = [line for line in capsys.readouterr().out.splitlines() if "epochs of the text" in line]
    # No token has less than a byte: of 75,000 bytes to train on, 4M tokens are more than 53 epochs.
    assert len(lines) == 2
    for line, name in zip(lines, ("gqa", "mla"), strict=True):
        assert re.fullmatch(
            rf"{name}_0.5B_smoke__seed_1234, {name}_0.5B_smoke__seed_1235: \S+ tokens per parameter, at least 53\.\d "
            r"epochs of the text; speed only: 53 epochs are more than 4",
            line,
        ), line
    with pytest.raises(typer.Exit):
        sweep(arguments=words, only="gqa_0.5B", smoke=True, data=str(missing), dry_run=True)
    assert f"gqa_0.5B_smoke: data.path: {missing}: no such file\n" in capsys.readouterr().out
    # Without --dry-run nothing begins.
    with pytest.raises(ConfigError, match=re.escape(f"{missing}: no such file")):
        sweep(arguments=words, only="gqa_0.5B", smoke=True, data=str(missing))
    assert not (tmp_path / "out").exists()


def test_runs_at_once_share_the_cores_that_a_dry_run_counts_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("efficientbench.sweep.sweep.find_machine", lambda device: CPU)
    monkeypatch.setattr("efficientbench.sweep.sweep.usable_cores", lambda: 8.0)
    for jobs, cores in (("auto", "8 cores"), ("2", "4 cores"), ("8", "1 core")):
        with pytest.raises(typer.Exit):
            sweep(arguments=[f"output={tmp_path}"], only="gqa,mla", sizes="0.5B", smoke=True, dry_run=True, jobs=jobs)
        assert f"GFLOP/s a core assumed ({cores})" in capsys.readouterr().out


def test_names_too_long_for_a_file_system_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efficientbench.sweep.sweep.find_machine", lambda device: CPU)
    with pytest.raises(ConfigError, match="File name too long"):
        sweep(arguments=["x" * 300])
    with pytest.raises(typer.Exit) as planned:
        sweep(arguments=[f"output={tmp_path / ('x' * 300)}"], only="gqa_0.5B", smoke=True, dry_run=True)
    assert planned.value.exit_code == 0


def test_a_smaller_micro_batch_keeps_the_global_batch_and_is_reported() -> None:
    (task,) = build_tasks(Request(only=("gqa_0.5B",), smoke=True), CPU, None)
    tried = []
    while (task := task.smaller(CPU)) is not None:  # type: ignore[assignment]
        assert task.plan is not None
        training = task.plan.config.training
        tried.append(training.micro_batch_size)
        assert (training.global_batch_size, training.micro_batch_size_asked, task.asked) == (8, 4, 4)
        assert task.arguments[-2:] == (
            f"training.micro_batch_size={training.micro_batch_size}",
            "training.micro_batch_size_asked=4",
        )
    assert tried == [2, 1]


def test_devices_are_divided_among_runs() -> None:
    free, wide = Request(only=("gqa_0.5B",)), Request(only=("gqa_0.5B",), overrides=("parallel.tp=2", "parallel.dp=1"))
    # What leaves data parallelism to the devices takes all of them, or with a number of jobs its part.
    tasks = [build_tasks(request, GPUS, jobs)[0] for request, jobs in ((wide, None), (free, None), (free, 4))]
    assert [(task.slots, task.plan.layout.dp) for task in tasks if task.plan] == [(2, 1), (8, 8), (2, 2)]
    axes = ("parallel.tp=1,2", "parallel.dp=2")
    _, refused = build_tasks(Request(only=("gqa_0.5B",), axes=axes), GPUS, 4)
    assert "each rank needs one of its own" in refused.refused.reason  # type: ignore[union-attr]


def test_a_run_that_does_not_fit_is_refused_or_gets_a_smaller_micro_batch() -> None:
    small = Machine("cuda", "a GPU", ("0",), 24 * 10**9, 1_500_000_000, "CUDA_VISIBLE_DEVICES")
    words = ("training.micro_batch_size=16", "training.seq_len=2048")
    with pytest.raises(ConfigError, match="does not fit"):
        build_tasks(Request(only=("gqa_0.5B",), overrides=words), small, None)
    (task,) = build_tasks(Request(only=("gqa_0.5B",), overrides=words, retry_smaller=True), small, None)
    assert (task.refused, task.asked) == (None, 16)
    assert task.plan is not None
    assert task.plan.config.training.micro_batch_size < 16


def test_a_refused_run_keeps_the_label_of_the_sweep(tmp_path: Path) -> None:
    """Otherwise its reason would be written into the folder of a run without the label."""
    overrides = ("label=alibi", "model.position.kind=alibi", f"output={tmp_path}")
    tasks = build_tasks(Request(only=("gqa_0.5B", "mla_0.5B"), overrides=overrides, smoke=True), CPU, None)
    assert [(task.id, task.refused is not None) for task in tasks] == [
        ("gqa_0.5B_smoke__alibi", False),
        ("mla_0.5B_smoke__alibi", True),
    ]


def test_a_dry_run_plans_for_a_cluster_that_is_not_at_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"output={tmp_path}", "training.global_batch_size=64"]
    with pytest.raises(typer.Exit) as planned:
        sweep(arguments=words, only="gqa_0.5B,gqa_32B", dry_run=True, device="h100 sxm", nodes=2)
    assert planned.value.exit_code == 0
    printed = capsys.readouterr().out
    assert "planned for 2 nodes of 8 × H100 SXM" in printed
    rows = {line.split()[0]: line.split() for line in printed.splitlines() if line.startswith("gqa_")}
    assert rows["gqa_0.5B"][1:3] == ["queued", "16"]
    # What does not fit is a row with its memory, and its reason says what would help.
    assert rows["gqa_32B"][1:3] == ["refused", "16"]
    assert float(rows["gqa_32B"][6]) > 8 * 80
    assert "gqa_32B: refused (out_of_memory): gqa_32B does not fit: a rank needs about" in printed
    assert "projected from the rates of H100 SXM" in printed
    assert not list(tmp_path.iterdir())


def test_a_dry_run_prints_a_table_of_runs_that_fit_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as planned:
        sweep(arguments=[f"output={tmp_path}"], only="gqa_32B", dry_run=True, device="RTX 4090", devices_per_node=1)
    assert planned.value.exit_code == 0
    assert "refused" in capsys.readouterr().out


@pytest.mark.parametrize("words", [{"nodes": 2, "dry_run": True}, {"device": "H100 SXM"}])
def test_a_cluster_is_refused_without_a_dry_run(words: dict[str, object]) -> None:
    with pytest.raises(typer.BadParameter):
        sweep(only="gqa_0.5B", **words)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the memory of V100 SXM2 does not follow"):
        sweep(only="gqa_0.5B", dry_run=True, device="V100 SXM2")
