"""Models whose layers are of several kinds: how the kinds are named, resolved, refused, and divided among stages."""

import json

import pytest

from efficientbench.architecture.model import ModelConfig
from efficientbench.basics.errors import ConfigError
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.costs.communication import micro_batch_transfers, step_transfers
from efficientbench.costs.compute import micro_batch_work
from efficientbench.costs.matrices import muon_flops, rank_matrices
from efficientbench.costs.memory import memory_by_stage, rank_parameters
from efficientbench.costs.model import cache_bytes, count_parameters, flops_per_token, keys_read_per_query

BASE = "mqa_0.5B"
MIXED = ("model.pattern=[mla,own]", "training.global_batch_size=8")


def mixed(*overrides: str) -> RunConfig:
    return resolve(BASE, smoke=True, overrides=overrides)


def test_a_pattern_repeats_and_is_cut_at_the_depth() -> None:
    model = mixed("model.layers=5", "model.pattern=[mla,mla,own]").model
    assert model.layer_kinds == ("mla", "mla", "own", "mla", "mla")
    assert [view.attention.kind for view in model.views.values()] == ["mla", "gqa"]
    assert [count for _, count in model.counted_views] == [4, 1]


def test_a_kind_adds_keys_to_its_section_and_another_kind_replaces_it() -> None:
    model = mixed(
        *(
            "model.pattern=[wide,free,own]",
            "model.kinds.wide.attention.query_groups=7",
            "model.attention.qkv_bias=false",
        ),
        *("model.kinds.free.position.kind=none", "model.kinds.free.ffn_hidden_size=96"),
    ).model
    # Only what differs is kept, so that a kind follows the model's other keys.
    assert model.kinds == {
        "wide": {"attention": {"query_groups": 7}},
        "free": {"position": {"kind": "none"}, "ffn_hidden_size": 96},
    }
    views = model.views
    assert views["wide"].attention.model_dump() == {"kind": "gqa", "query_groups": 7, "qkv_bias": False}
    assert (views["free"].position.kind, views["free"].ffn_hidden_size) == ("none", 96)
    assert views["own"].attention == model.attention
    copied = model.model_copy(update={"vocab_size": 17})
    assert {view.vocab_size for view in copied.views.values()} == {17}
    assert ModelConfig.model_validate(json.loads(model.model_dump_json())) == model


@pytest.mark.parametrize(
    ("name", "key"),
    [("mla", "attention.kv_lora_rank=64"), ("mla", "position.kind=none"), ("gdn", "ffn_hidden_size=96")],
)
def test_keys_of_a_kind_that_is_named_after_an_attention_are_over_its_defaults(name: str, key: str) -> None:
    plain = mixed(f"model.pattern=[{name},own]").model
    model = mixed(f"model.pattern=[{name},own]", f"model.kinds.{name}.{key}").model
    assert model.views[name].attention.kind == name
    path, _, value = key.rpartition("=")
    section, _, leaf = path.rpartition(".")
    changed = model.views[name].model_dump()
    assert str((changed[section] if section else changed)[leaf]) == value
    # All else is as without the key.
    before = plain.views[name].model_dump()
    (changed[section] if section else changed)[leaf] = (before[section] if section else before)[leaf]
    assert changed["attention"] == before["attention"]
    assert changed["ffn_hidden_size"] == before["ffn_hidden_size"]
    assert ModelConfig.model_validate(json.loads(model.model_dump_json())) == model


def test_a_kind_has_no_other_attention_than_its_name_says() -> None:
    with pytest.raises(ConfigError, match=r"mla: is the name of an attention, and its attention.kind is nsa: give the"):
        mixed("model.pattern=[mla,own]", "model.kinds.mla.attention.kind=nsa")


def test_advice_for_a_kind_names_its_own_key() -> None:
    with pytest.raises(ConfigError, match=r"set model.kinds.m.position.kind to none$"):
        mixed("model.pattern=[m,own]", "model.kinds.m.attention.kind=gdn")


def test_models_without_a_pattern_are_written_as_before() -> None:
    assert not {"first", "pattern", "kinds"} & mixed().model.model_dump().keys()
    experts = resolve("moe_0.5Bx8").model.model_dump()["moe"]
    assert experts.keys() == {"experts", "top_k", "auxiliary_loss", "auxiliary_over"}
    kept = resolve("moe_0.5Bx8", overrides=["model.moe.scores=sigmoid", "model.moe.bias_rate=0"]).model.model_dump()
    assert (kept["moe"]["scores"], kept["moe"]["bias_rate"]) == ("sigmoid", 0)


@pytest.mark.parametrize("without", ["model.kinds.dense.moe=false", "model.kinds={dense: {moe: null}}"])
def test_first_layers_come_before_the_pattern_and_may_be_without_experts(without: str) -> None:
    words = ("model.layers=5", "model.first=[dense,dense]", without)
    model = resolve("moe_fine_shared_0.5Bx8", smoke=True, overrides=words).model
    assert model.layer_kinds == ("dense", "dense", "own", "own", "own")
    assert (model.told_kinds, model.expert_layers) == ("2 dense, 3 own", (2, 3, 4))
    # Not null, which is as good as absent where records are compared.
    assert model.kinds == {"dense": {"moe": False}}
    assert model.own_view.first is model.views["dense"].moe is None
    assert ModelConfig.model_validate(json.loads(model.model_dump_json())) == model
    width = 3 * model.hidden_size * model.ffn_hidden_size
    counted = count_parameters(model)
    assert counted.feed_forward == 3 * (64 * width + 62 * model.hidden_size) + 2 * width
    assert counted.idle == 3 * (62 - 14) * width


@pytest.mark.parametrize("declaration", ["attention_variant", "position_variant", "plain_scores", "shares_sequence"])
def test_no_formula_answers_for_a_model_with_a_pattern(declaration: str) -> None:
    with pytest.raises(TypeError, match="ask its views"):
        getattr(mixed(*MIXED).model, declaration)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.pattern=[]"], "model.pattern: a pattern of 0 layers does not fit a model of 4"),
        (
            ["model.pattern=[own,own,own,own,mla]"],
            "does not fit a model of 4 (model.layers): name 1 to 4, or set model.layers=5",
        ),
        (["model.pattern=gdn"], "model.pattern: 'gdn' is no list: write model.pattern=[gdn] (kinds of the layers"),
        (
            ["model.pattern=[mlaa,own]"],
            "mlaa: is in model.pattern, and neither here nor an attention; did you mean mla",
        ),
        (["model.kinds.a.qk_norm=true"], "model.kinds: name them in the order of the layers"),
        (["model.pattern=[mla]", "model.kinds.a.qk_norm=true"], "a: no layer of model.pattern is of this kind"),
        (["model.pattern=[a]", "model.kinds={a: {heads: 2}}"], "a.heads: a kind has attention, position, qk_norm"),
        (["model.pattern=[a]", "model.kinds.a.attention.query_groups=3"], "a: 14 heads cannot be shared evenly by 3"),
        (
            ["model.pattern=[a]", "model.kinds.a.attention.query_groups=0"],
            "a.attention.query_groups: '0' does not fit: input",
        ),
        (
            ["model.pattern=[a,own]", "model.kinds.a.position.kind=alibi"],
            "a.position.kind: layers with 'rope' and with",
        ),
        (
            ["model.attention.window=0"],
            "attention.window: '0' does not fit: input should be greater than or equal to 1 (keys that a query sees",
        ),
        (
            ["model.attention.kind=nsa", "model.attention.window=0"],
            "greater than or equal to 1 (tokens in the sliding window",
        ),
        (
            ["model.pattern=[a]", "model.kinds.a.attention.window=0"],
            "a.attention.window: '0' does not fit: input should be",
        ),
        (["model.attention.sinks=true", "model.position.kind=alibi"], "set model.position.kind to rope, absolute"),
        (["model.attention.sinks=true", "kernels.attention=flash"], "have a kernel of their own: leave it auto"),
        (["model.position.share=0.01"], "its share (position.share), must be even and above 0, not"),
        (["model.kinds.a.attention.windw=3"], "model.kinds.a.attention.windw: unknown key"),
        ([*MIXED, "training.optimizer=muon", "model.pattern=[nope:VARIANT,own]"], "there is no module nope"),
        (["model.first=[nope:VARIANT]"], "there is no module nope"),
        (["model.first=[mla,mla,mla,mla]"], "a pattern of 1 layers, after 4 of model.first, does not fit a model of 4"),
        (["model.first=[dense]"], "dense: is in model.pattern, and neither here nor an attention"),
        (["model.pattern=[a]", "model.kinds={a: {moe: {experts: 4}}}"], "a.moe: layers with experts have those of"),
        (
            ["model.moe.experts=4", "model.pattern=[a]", "model.kinds.a.moe=false"],
            "no layer of model.pattern has the experts of model.moe",
        ),
        (["model.moe.bias_rate=0.1"], "bias_rate: the bias is added to scores between 0 and 1"),
        (["model.moe.scores=sigmoid", "model.moe.normalized=false"], "normalized: false is defined for scores=softmax"),
    ],
)
def test_bad_patterns_have_one_message_each(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        mixed(*overrides)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("attention.windw=512", "attention.windw: unknown key; did you mean model.kinds.swa.attention.window?"),
        ("window=512", "window: unknown key; did you mean model.kinds.swa.attention.window?"),
        ("heads=2", "heads: a kind has attention, position, qk_norm, ffn_hidden_size, moe alone"),
    ],
)
def test_an_unknown_key_of_a_kind_is_the_only_problem(key: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        mixed("model.pattern=[swa,own]", f"model.kinds.swa.{key}")
    assert str(error.value) == f"model.kinds.swa.{message}"


@pytest.mark.parametrize(
    ("overrides", "section"),
    [
        (["model.attention.kind=mamba2", "model.position.kind=none"], "model.attention"),
        (["model.pattern=[mamba2]"], "model.kinds.mamba2.attention"),
    ],
)
def test_ranks_that_hold_no_whole_key_heads_are_refused_by_the_key_that_sets_them(
    overrides: list[str], section: str
) -> None:
    with pytest.raises(ConfigError, match=rf"the 1 key heads \({section}.key_heads\)"):
        Layout.of(mixed(*overrides, f"{section}.value_dim=16", "parallel.tp=2"), 2)


def test_stages_with_other_kinds_of_layers_are_refused_with_the_cuts_that_fit() -> None:
    uneven = mixed(*MIXED, "model.layers=8", "model.pattern=[mla,mla,mla,own]", "parallel.pp=4", "parallel.dp=1")
    with pytest.raises(ConfigError, match=r"4 × vpp 1 stages of 2 layers would differ .* 1 or 2 stages are alike"):
        Layout.of(uneven, 4)
    even = uneven.model_copy(update={"parallel": uneven.parallel.model_copy(update={"pp": 2})})
    assert Layout.of(even, 2).layers_per_stage == 4


def test_what_is_counted_is_the_mean_of_models_of_each_kind() -> None:
    """With one layer of two of a kind, every sum over layers is half of that over two models of one kind each."""
    both = mixed(*MIXED, "training.optimizer=muon", "parallel.pp=2", "parallel.dp=1")
    alike = [both.model_copy(update={"model": view}) for view in both.model.views.values()]
    layout = Layout.of(both, 2)

    def figures(config: RunConfig) -> list[float]:
        model, flops = config.model, flops_per_token(config.model, 64, "selective")
        work = micro_batch_work(config, layout, 0)
        sent = [each.payload_bytes for each in step_transfers(config, layout, 0)]
        memory = memory_by_stage(config, layout, 0)[0]
        return [
            *(count_parameters(model).total, flops.forward, flops.recomputed, flops.forward_full_square),
            *(keys_read_per_query(model, 64), cache_bytes(model, 64, "bf16")),
            *(rank_matrices(config, layout), muon_flops(config, layout), rank_parameters(config, layout, 1)),
            *(sum(part.flops for part in parts) for parts in work.values()),
            *(sum(part.moved_bytes for part in parts) for parts in work.values()),
            *(sum(sent), sum(each.payload_bytes for each in micro_batch_transfers(config, layout, 1))),
            *(memory.weights, memory.activations, memory.muon_momentum),
        ]

    first, second = map(figures, alike)
    assert first != second
    assert figures(both) == pytest.approx([(one + other) / 2 for one, other in zip(first, second, strict=True)])
