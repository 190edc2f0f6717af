"""`match` solves a model's size for the cost of another run; plan, run, sweep, launch and list agree on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from efficientbench.architecture.registry import ATTENTION
from efficientbench.basics.errors import ConfigError
from efficientbench.cli.app import app
from efficientbench.cli.launch_script import Machines, named_runs
from efficientbench.config.load import resolve
from efficientbench.config.matrix import load_matrix
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import count_parameters, flops_per_token, kv_cache_bytes_per_token
from efficientbench.planning.vocabulary import resolve_run
from efficientbench.sweep.machine import Machine
from efficientbench.sweep.selection import Request
from efficientbench.sweep.tasks import build_tasks

CPU = Machine("cpu", "a CPU", ("0",), None, 400_000_000, None)
COUNTS: dict[str, Callable[[RunConfig], int]] = {
    "flops": lambda run: flops_per_token(run.model, run.training.seq_len).training,
    "parameters": lambda run: count_parameters(run.model).total,
    "active": lambda run: count_parameters(run.model).active,
    "cache": lambda run: kv_cache_bytes_per_token(run.model, run.training.dtype),
}


def solved(name: str, *words: str, smoke: bool = False) -> RunConfig:
    return resolve_run(name, smoke, words)[0]


@pytest.mark.parametrize("match", ["flops", "parameters", "active"])
@pytest.mark.parametrize("name", ["mqa_1.5B", "mla_1.5B", "nsa_0.5B", "moe_0.5Bx8"])
def test_the_feed_forward_width_equals_the_named_runs_cost(name: str, match: str) -> None:
    before, other = resolve(name), resolve(f"gqa_{name.partition('_')[2]}")
    found = solved(name, f"match={match}", "match_to=gqa")
    left = COUNTS[match](found) / COUNTS[match](other) - 1
    assert abs(left) < 0.0005 < abs(COUNTS[match](before) / COUNTS[match](other) - 1)
    assert found.match_left == left
    width = found.model.ffn_hidden_size
    assert width % 8 == 0
    # Neither neighbour is nearer.
    for other_width in (width - 8, width + 8):
        model = found.model.model_copy(update={"ffn_hidden_size": other_width})
        moved = COUNTS[match](found.model_copy(update={"model": model})) / COUNTS[match](other) - 1
        assert abs(left) <= abs(moved)


def test_every_run_of_the_matrix_comes_within_a_percent_of_gqas_flops() -> None:
    matrix = load_matrix()
    names = {run.name for run in matrix.all_runs if run.variant in matrix.variants}
    left = {name: abs(solved(name, "match=flops", "match_to=gqa").match_left or 0.0) for name in sorted(names)}
    assert len(left) >= 50
    assert {name: share for name, share in left.items() if share > 0.01} == {}


def test_tensor_parallel_ranks_have_widths_of_whole_steps() -> None:
    widths = {
        tp: solved("mla_1.5B", "match=flops", "match_to=gqa", f"parallel.tp={tp}").model.ffn_hidden_size
        for tp in (1, 4)
    }
    assert widths[1] % 32 != 0 == widths[4] % 32
    assert abs(widths[4] - widths[1]) <= 16


@pytest.mark.parametrize(
    ("name", "to", "key", "value"),
    [("mla_1.5B", "gqa", "kv_lora_rank", 448), ("mha_1.5B", "gqa_1.5B", "query_groups", 2)],
)
def test_the_cache_is_matched_by_groups_or_the_latent(name: str, to: str, key: str, value: int) -> None:
    found = solved(name, "match=cache", f"match_to={to}")
    assert getattr(found.model.attention, key) == value
    assert COUNTS["cache"](found) == COUNTS["cache"](resolve("gqa_1.5B"))
    assert found.model.ffn_hidden_size == resolve(name).model.ffn_hidden_size


def test_the_named_run_itself_and_choices_of_it() -> None:
    words = ("match=flops", "match_to=gqa", "training.seq_len=512", "model.layers=4")
    itself = solved("gqa_1.5B", *words)
    assert (itself.model, itself.match_left) == (resolve("gqa_1.5B", overrides=words).model, 0.0)
    # Choices are those of the run alone, all other keys also of the one that it is matched to.
    wide = solved("gqa_1.5B", *words, "model.attention.query_groups=12")
    assert wide.model.ffn_hidden_size < itself.model.ffn_hidden_size
    assert COUNTS["flops"](wide) == pytest.approx(COUNTS["flops"](itself), rel=0.001)


def test_sequence_and_vocabulary_are_the_runs_own() -> None:
    # NSA's smoke runs have longer sequences than GQA's, whose FLOPs count at that length.
    found = solved("nsa_0.5B", "match=flops", "match_to=gqa", "data.trained_vocab_size=5000", smoke=True)
    other = solved("gqa_0.5B", f"training.seq_len={found.training.seq_len}", "model.vocab_size=5000", smoke=True)
    assert found.model.vocab_size == 5000
    assert COUNTS["flops"](found) == pytest.approx(COUNTS["flops"](other), rel=0.005)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("mla_1.5B", ("match=flops",), "match_to: name the run or the variant that match=flops is to equal, like gqa"),
        (
            "mla_1.5B",
            ("match_to=gqa",),
            "match: name the figure in which the run is to equal gqa: match=flops, parameters, active or cache",
        ),
        ("mla_1.5B", ("match=flops", "match_to=gqq"), "match_to=gqq: there is no run called 'gqq_1.5B': did you mean"),
        ("mla_1.5B", ("match_left=0",), "match_left: is decided by match and cannot be overridden"),
        (
            "nsa_1.5B",
            ("match=cache", "match_to=gqa"),
            "match=cache: nsa_1.5B comes no nearer to the 28,672 cache bytes per token of gqa_1.5B than 3%: the "
            "nearest are model.attention.query_groups=1, 46.88% less and model.attention.query_groups=2, 6.25% more",
        ),
        (
            "gqa_1.5B",
            ("match=cache", "match_to=gdn"),
            "match=cache: gdn_1.5B has no cache bytes per token: give match_to another run",
        ),
        (
            "moe_1.5Bx8",
            ("match=parameters", "match_to=gqa_50M"),
            "match=parameters: moe_1.5Bx8 comes no nearer to the",
        ),
    ],
)
def test_a_match_that_cannot_be_is_refused(name: str, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        solved(name, *words)


def test_a_value_of_an_axis_may_match_nothing() -> None:
    assert solved("mla_1.5B", "match=null", "match_to=gqa") == resolve(
        "mla_1.5B", overrides=["match_to=gqa", "match=null"]
    )


def test_an_attention_without_a_key_for_its_cache_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    undeclared = ATTENTION["mla"].__class__(**{**vars(ATTENTION["mla"]), "cache_choices": None})
    monkeypatch.setitem(ATTENTION, "mla", undeclared)
    message = "match=cache: attention 'mla' of mla_1.5B declares no key by which its cache grows"
    with pytest.raises(ConfigError, match=message):
        solved("mla_1.5B", "match=cache", "match_to=gqa")


def test_what_is_left_is_said_by_plan_and_noted_above_a_percent() -> None:
    result = CliRunner().invoke(app, ["plan", "mla_1.5B", "match=flops", "match_to=gqa"], env={"COLUMNS": "200"})
    line = "mla_1.5B: model.ffn_hidden_size=8296 instead of 8960, for the training FLOPs per token of gqa, 0.02% less"
    assert line in result.output
    assert re.search(r"matched +│ training FLOPs per token of gqa, 0.02% less", result.output)
    small = ["model.layers=1", "model.vocab_size=64", "model.ffn_hidden_size=64", "data.trained_vocab_size=64"]
    words = ["match=flops", "match_to=gqa", *small]
    said = resolve_run("mqa_0.5B", True, [*words, "parallel.tp=2"])[1]
    assert said is not None
    assert ": model.ffn_hidden_size=64, for the training FLOPs" in said
    assert said.endswith(" per token of gqa, 2.63% less (note: no other size comes nearer)")
    result = CliRunner().invoke(app, ["plan", "mqa_0.5B", "--smoke", *words], env={"COLUMNS": "200"})
    assert re.search(r"FLOPs per token of gqa, 1\.32% more \(note: no other size comes nearer\)", result.output)


def test_a_sweep_solves_each_run_and_keeps_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("match=flops", "match_to=gqa", "training.steps=null", "training.tokens=20x")
    request = Request(only=("attention",), sizes=("0.5B",), overrides=words, smoke=True)
    tasks = {task.id: task for task in build_tasks(request, CPU, None)}
    assert set(tasks) == {f"{variant}_0.5B_smoke" for variant in ("mqa", "gqa", "mla", "nsa")}
    for task in tasks.values():
        # The command of each run resolves to the same configuration.
        assert task.config == resolve_run(task.arguments[1], True, task.arguments[3:])[0]
    mla = tasks["mla_0.5B_smoke"].config
    assert mla is not None
    # At the length of NSA's run, which is also the other runs'.
    assert (mla.training.seq_len, mla.model.ffn_hidden_size) == (768, 504)
    assert "mla_0.5B_smoke: model.ffn_hidden_size=504 instead of 608" in capsys.readouterr().err
    planned = [task.planned() for task in tasks.values()]
    assert len({each.tokens for each in planned if each is not None}) == 1
    # A script for other machines has the same commands.
    assert [run.overrides for run in named_runs(request, Machines(1, 0))] == [
        task.arguments[3:] for task in tasks.values()
    ]


def test_a_match_is_an_axis_and_refuses_run_by_run() -> None:
    request = Request(only=("mla", "nsa"), sizes=("1.5B",), axes=("match=flops,cache",), overrides=("match_to=gqa",))
    tasks = {task.id: task for task in build_tasks(request, CPU, None, dry_run=True)}
    assert set(tasks) == {f"{name}_1.5B__match={match}" for name in ("mla", "nsa") for match in ("flops", "cache")}
    refused = {id for id, task in tasks.items() if task.refused is not None and task.refused.kind == "mistake"}
    assert refused == {"nsa_1.5B__match=cache"}


def test_a_matrix_can_match_its_variants_and_list_counts_them(tmp_path: Path) -> None:
    matrix = tmp_path / "mine.yaml"
    matrix.write_text(
        "variants:\n"
        "  thin: {model: {attention: {kind: mla}}, match: parameters, match_to: gqa}\n"
        "  chain: {model: {attention: {kind: mla}}, match: parameters, match_to: thin}\n"
        "suites: {mine: [{variants: [gqa, thin, chain], sizes: [1.5B]}]}\n"
    )
    wanted = solved("mla_1.5B", "match=parameters", "match_to=gqa")
    listed = CliRunner().invoke(app, ["list", "--matrix", str(matrix)], env={"COLUMNS": "200"}).output
    assert re.search(rf"thin_1.5B +{COUNTS['parameters'](wanted):,} ", listed)
    assert re.search(r"chain_1.5B +n/a", listed)
    with pytest.raises(ConfigError, match="match_to=thin: thin_1.5B is itself matched to gqa: name a run that is not"):
        resolve_run("chain_1.5B", matrix_file=matrix)
