"""The matrix names the published runs, and is refused where it is inconsistent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from efficientbench.architecture.registry import ATTENTION
from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve
from efficientbench.config.matrix import CHAT, EXPERIMENTS, HYBRIDS, _valid, load_matrix, load_smoke
from efficientbench.training.update.schedule import learning_rate

SIZES = ("0.5B", "1.5B", "3B")


def test_every_published_run_is_in_its_suite() -> None:
    runs = load_matrix().runs
    by_suite = {suite: {run.name for run in runs if run.suite == suite} for suite in load_matrix().suites}
    published = {
        "attention_variants": {f"{variant}_{size}" for variant in ("mqa", "gqa", "mla", "nsa") for size in SIZES},
        "positional_encodings": {
            f"{variant}_1.5B" for variant in ("rope", "absolute", "learnable_absolute", "relative", "none")
        },
        "moe_variants": {"dense_1.5B", "dense_3B", "moe_0.5Bx8", "moe_1.5Bx8"},
    }
    assert all(names <= by_suite[suite] for suite, names in published.items())
    assert len(runs) == len({run.name for run in runs}) == sum(map(len, by_suite.values()))


def test_every_attention_variant_has_runs_in_every_size() -> None:
    found: dict[str, set[str]] = {}
    for run in load_matrix().all_runs:
        for view in resolve(run.name).model.views.values():
            found.setdefault(view.attention.kind, set()).add(run.size)
    assert {kind: set(SIZES) <= sizes for kind, sizes in found.items()} == dict.fromkeys(ATTENTION, True)


STAGES = {f"{stage}_d{depth}": depth for stage in ("base", "mid", "sft", "rl") for depth in (8, 12, 16, 20)}


def test_the_matrix_has_published_models_and_chat_stages() -> None:
    matrix = load_matrix()
    hybrids = load_matrix(HYBRIDS).suites
    beside = [run.name for run in matrix.all_runs if run not in matrix.runs and run.suite not in hybrids]
    assert beside == ["nanochat_d12", *STAGES]
    assert matrix.run("nanochat_d12").suite == "published_models"
    assert {matrix.run(name).suite for name in STAGES} == {"chat"}
    # Two sizes of one name: each run has that of its own file.
    assert (resolve("nanochat_d12").model.ffn_hidden_size, resolve("base_d12").model.ffn_hidden_size) == (3072, 2048)
    assert {resolve(name, matrix_file=CHAT).model for name in STAGES} == {resolve(name).model for name in STAGES}


@pytest.mark.parametrize("name", STAGES)
def test_all_stages_of_a_depth_share_one_model(name: str) -> None:
    config, depth = resolve(name), STAGES[name]
    model, training, heads = config.model, config.training, -(-64 * depth // 128)
    assert (model.layers, model.hidden_size, model.heads) == (depth, 64 * depth, heads)
    assert model.head_dim * heads == model.hidden_size
    length = 512 if training.objective == "rl" else 2048
    assert (model.key_value_heads, model.vocab_size, training.seq_len) == (heads, 65536, length)
    assert 0 <= model.ffn_hidden_size - 64 * depth * 8 / 3 < 128
    assert model == resolve(f"base_d{depth}").model
    assert resolve(name, smoke=True).model == resolve(f"base_d{depth}", smoke=True).model
    # Each of four devices has as many micro-batches as the others.
    assert training.global_batch_size % (4 * training.micro_batch_size) == 0


def test_the_stages_have_their_objectives_batches_and_schedules() -> None:
    quick, base, mid, sft = (resolve(name).training for name in ("base_d8", "base_d12", "mid_d12", "sft_d12"))
    assert (quick.global_batch_size * quick.seq_len, quick.steps) == (65_536, 100)
    assert (base.global_batch_size * base.seq_len, base.steps, base.objective) == (262_144, 5000, "pretrain")
    assert resolve("base_d20").training.tokens == "20x"
    assert (mid.epochs, mid.steps, mid.objective, mid.lr_scale) == (1, None, "pretrain", 1.0)
    assert (sft.epochs, sft.steps, sft.objective, sft.lr_scale) == (1, None, "sft", 0.02)
    rl = resolve("rl_d12")
    assert (rl.training.epochs, rl.training.objective, rl.training.lr_scale) == (1, "rl", 0.05)
    assert (rl.training.global_batch_size, rl.rl.samples, rl.rl.top_k) == (16 * 16, 16, 50)
    # nanochat's mid-training keeps its rates for four fifths of the steps; its SFT lowers them from the first step on.
    for stage, shares in ((mid, (1, 1, 0.5, 0)), (sft, (0.5, 0.2, 0.1, 0)), (rl.training, (0.5, 0.2, 0.1, 0))):
        assert (stage.learning_rate, stage.lr_warmup_fraction) == (base.learning_rate, 0)
        rates = [learning_rate(stage, step, 100) / (stage.lr_scale * base.learning_rate) for step in (50, 80, 90, 100)]
        assert rates == pytest.approx(shares)
    assert resolve("sft_d12", overrides=["training.steps=70"]).training.epochs is None
    # What is laid over a length replaces it, whichever key it has.
    smoke = [resolve(name, smoke=True).training for name in ("base_d20", "mid_d20", "sft_d20")]
    assert [(each.tokens, each.steps, each.epochs) for each in smoke] == [(None, 100, None), *[(None, None, 1)] * 2]


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


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ("5", "training: 5 does not fit: input should be a valid dictionary"),
        ("[steps]", "training: ['steps'] does not fit"),
        ("{global_batch_tokens: .inf}", "training.global_batch_tokens: inf does not fit"),
        ("{global_batch_tokens: 4096, global_batch_size: [1]}", "training.global_batch_size: [1] does not fit"),
    ],
)
def test_a_wrong_section_of_a_matrix_is_named_by_its_key(training: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("v_0.5B", matrix_file=_of_one_variant(tmp_path, training))
    (problem,) = caught.value.problems
    assert message in problem


def test_an_empty_section_of_a_matrix_sets_nothing(tmp_path: Path) -> None:
    file = _of_one_variant(tmp_path, "")
    for overrides in ([], ["training.steps=100"]):
        training = resolve("v_0.5B", overrides=overrides, matrix_file=file).training
        assert training == resolve("gqa_0.5B", overrides=overrides).training
        assert training.micro_batch_size == 4  # the size's


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML was built without libyaml")
def test_the_shipped_files_are_parsed_by_libyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command reads them, and PyYAML's own parser takes many times as long."""
    _valid.cache_clear()
    monkeypatch.setattr(yaml.SafeLoader, "get_single_node", None)
    assert load_matrix().runs
    assert load_smoke()


ALIASES = "\n".join(f"  a{n}: &a{n} {{x: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12))
MERGES = "\n".join(f"  a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12))


@pytest.mark.parametrize("more", [ALIASES, MERGES, "  a1: &a1 {x: *a1}"], ids=["aliases", "merges", "a circle"])
def test_aliases_that_multiply_a_matrix_are_refused(more: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"sizes: {{}}\nvariants:\n  a0: &a0 {{y: 1}}\n{more}\nsuites: {{}}\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml cannot be read: with its aliases written out it has more"):
        load_matrix(path)


def test_aliases_and_merges_of_a_matrix_are_resolved(tmp_path: Path) -> None:
    path, suites = tmp_path / "mine.yaml", "{mine: [{variants: [v, w], sizes: [0.5B]}]}"
    path.write_text(f"variants: {{v: &v {{training: &t {{steps: 7}}}}, w: {{<<: [*v], init: *t}}}}\nsuites: {suites}\n")
    steps = {"training": {"steps": 7}}
    matrix = load_matrix(path)
    assert (matrix.variants["v"], matrix.variants["w"]) == (steps, {**steps, "init": {"steps": 7}})


def _of_one_variant(folder: Path, training: str) -> Path:
    path, suites = folder / "mine.yaml", "{mine: [{variants: [v], sizes: [0.5B]}]}"
    path.write_text(f"variants: {{v: {{training: {training}}}}}\nsuites: {suites}\n")
    return path


def test_a_missing_matrix_is_refused(tmp_path: Path) -> None:
    for path in (EXPERIMENTS / "gone.yaml", tmp_path / "mine.yaml", tmp_path / "matrix.yaml"):
        with pytest.raises(ConfigError, match=rf"{path.name} is missing$"):
            load_matrix(path)


def test_outside_a_clone_the_shipped_matrix_has_the_name_that_pages_give_it(tmp_path: Path) -> None:
    assert load_matrix(tmp_path / "experiments" / "matrix.yaml") == load_matrix()
    own = tmp_path / "experiments" / "matrix.yaml"
    own.parent.mkdir()
    own.write_text("suites: {mine: [{variants: [gqa], sizes: [0.5B]}]}\n")
    assert set(load_matrix(own).suites) == {"mine"}
