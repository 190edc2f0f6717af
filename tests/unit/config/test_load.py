"""From names and overrides to a RunConfig: the order of the layers, and all mistakes in one message."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from efficientbench.architecture.mla import MLAConfig
from efficientbench.architecture.positions import RopeConfig
from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve, settable_keys
from efficientbench.config.matrix import load_matrix, load_smoke
from efficientbench.config.schema import DataConfig, RunConfig
from efficientbench.config.training import TrainingConfig

RUNS = [run.name for run in load_matrix().runs]


def problems_of(*overrides: str, name: str = "gqa_1.5B", smoke: bool = False) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        resolve(name, smoke, overrides)
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def test_configuration_layers_apply_in_order() -> None:
    named = resolve("mqa_3B")
    assert named.name == "mqa_3B"
    assert named.model.attention.query_groups == 1  # from the variant
    assert (named.model.hidden_size, named.training.micro_batch_size) == (2048, 1)  # from the size
    assert named.training.seq_len == 2048  # a default
    smoke = resolve("mqa_3B", smoke=True)
    assert smoke.name == "mqa_3B_smoke"
    assert (smoke.model.hidden_size, smoke.model.attention.query_groups, smoke.training.seq_len) == (256, 1, 96)
    assert resolve("mqa_3B", True, ["training.seq_len=64", "training.seq_len=32"]).training.seq_len == 32


@pytest.mark.parametrize("name", RUNS)
def test_smoke_keeps_the_ratios_that_define_the_model(name: str) -> None:
    full, smoke = resolve(name).model, resolve(name, smoke=True).model
    assert (smoke.heads, smoke.position) == (full.heads, full.position)
    attention, ratios = type(full.attention), full.attention_variant.ratios
    widths = {key: 8 * getattr(smoke.attention, key) for key in attention.proportions(0, 0)}
    scaled = load_smoke().variants.get(load_matrix().run(name).variant, {}).get("model", {}).get("attention", {})
    # A key that is smaller has its place in a ratio.
    assert not scaled or ratios(full)
    assert ratios(smoke) == ratios(full)
    for key, value in full.attention.model_dump(exclude=set(scaled)).items():
        assert widths.get(key, getattr(smoke.attention, key)) == value, key
    assert full.hidden_size == 8 * smoke.hidden_size
    assert full.ffn_hidden_size == 8 * smoke.ffn_hidden_size
    assert full.head_dim == 8 * smoke.head_dim


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("training.learning_rate=1e-4", ("training", "learning_rate"), 1e-4),
        ("training.seq_len=010", ("training", "seq_len"), 10),
        ("training.tokens=8_000", ("training", "tokens"), 8000),
        ("training.tokens=null", ("training", "tokens"), None),
        ("training.tokens=20x", ("training", "tokens"), "20x"),
        ("parallel.dp=None", ("parallel", "dp"), None),
        ("parallel.sp=yes", ("parallel", "sp"), True),
        ("data.split=[98,2,0]", ("data", "split"), (98, 2, 0)),
        ("data.path=123", ("data", "path"), "123"),
        ("data.path=a=b c.jsonl", ("data", "path"), "a=b c.jsonl"),
        ("data.path=[a].txt", ("data", "path"), "[a].txt"),
        ("data.path=[0.7,/a/x,3e-1,/b/y]", ("data", "path"), (0.7, "/a/x", 0.3, "/b/y")),
        ("data.path=[3, 010, 1, 'a, b']", ("data", "path"), (3.0, "010", 1.0, "a, b")),
        ("data.tokenizer=", ("data", "tokenizer"), None),
        ("device=no", ("device",), "no"),
    ],
)
def test_override_values_have_their_types(override: str, key: tuple[str, ...], value: object) -> None:
    found: object = resolve("gqa_0.5B", True, [override])
    for step in key:
        found = getattr(found, step)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("select_count=6", "select_count: unknown key; did you mean model.attention.select_count?"),
        ("training.seqlen=64", "training.seqlen: unknown key; did you mean training.seq_len?"),
        ("sequence_len=64", "did you mean training.seq_len?"),
        ("kind=gqa", "did you mean model.attention.kind or model.position.kind?"),
        (
            "zzz=1",
            "keys begin with checkpoint, data, device, evaluation, faults, init, kernels, label, match, match_to, "
            "measurement, model, output, parallel, prometheus, rl, training",
        ),
        ("training=1", "training: is a section; set its keys: training.seq_len"),
        ("training.seq_len.x=1", "did you mean training.seq_len?"),
        ("training.seq_len", "an override is written key=value"),
        ("training.seq_len=x", "training.seq_len: 'x' does not fit: input should be a valid integer"),
        ("training.seq_len=true", "training.seq_len: 'true' does not fit: input should be a valid integer"),
        ("training.seq_len=0", "training.seq_len: '0' does not fit: input should be greater than or equal to 1"),
        *(
            (
                f"training.tokens={wrong}",
                f"training.tokens: '{wrong}' is neither a number of tokens above 0 nor of tokens",
            )
            for wrong in ("0", "-5", "x", "0x", "-1x", "nanx", "infx", "1e300x", "1e-5", "20 per parameter")
        ),
        (f"training.tokens={2**63}", "training.tokens: '9223372036854775808' is neither a number of tokens"),
        (f"training.steps={10**400}", "is above 9,223,372,036,854,775,807, the largest whole number here"),
        ("training.learning_rate=nan", "training.learning_rate: 'nan' does not fit: input should be a finite number"),
        (
            "training.seed=4294967296",
            "training.seed: '4294967296' does not fit: input should be less than or equal to 4294967295",
        ),
        (
            "faults.hang_limit_s=1e15",
            "faults.hang_limit_s: '1000000000000000' does not fit: input should be less than or equal to 1000000000",
        ),
        ("training.dtype=int8", "training.dtype: 'int8' does not fit: input should be 'bf16', 'fp16' or 'fp32'"),
        ("data.split=[1,2]", "data.split"),
        ("data.split=[1,", "data.split: '[1,' is not a list or a mapping as YAML writes them"),
        ("data.split=" + "[" * 100_000, "data.split"),
        (
            "data.path=[0.7,/a/x,0.3]",
            "data.path: ['0.7', '/a/x', '0.3'] is neither a path nor weights and paths in turn",
        ),
        (
            "data.path=[]",
            "data.path: [] is neither a path nor weights and paths in turn: a blend is written [weight,path",
        ),
        ("data.path=[/a/x,0.7,/b/y,0.3]", "data.path: '/a/x' stands where a weight should: a blend is written"),
        ("data.path=[0.7,[a],0.3,/b/y]", "data.path: ['a'] stands where a path should"),
        ("data.path=[1,/a/x,0,/b/y]", "data.path: the weight 0 is not above 0 and finite: leave out"),
        ("data.path=[1,/a/x,nan,/b/y]", "data.path: the weight nan is not above 0"),
        ("data.path=[1,/a/x,inf,/b/y]", "data.path: the weight inf is not above 0"),
        ("data.path=[1,/a/x,2,/a/x]", "data.path: /a/x is named twice: name it once, with the sum of its weights"),
        ("variant=../../x", "variant: is decided by the run's name and cannot be overridden"),
        ("smoke=true", "smoke: is decided by --smoke"),
        ("model.attention.query_groups=5", "12 heads cannot be shared evenly by 5 query groups"),
        ("model.head_dim=7", "head_dim, or its share (position.share), must be even and above 0, not 7"),
        ("model.position.kind=ropee", "model.position.kind: 'ropee' is not one of 'rope', "),
        ("model.position.base=0", "model.position.base: '0' does not fit: input should be greater than 0"),
        ("model.position.bse=1", "model.position.bse: unknown key; did you mean model.position.base?"),
        ("training.lr_scale=0", "training.lr_scale: '0' does not fit: input should be greater than 0"),
        ("training.lr_schedule=step", "training.lr_schedule: 'step' does not fit"),
        ("training.lr_decay_fraction=0.5", "lr_decay_fraction 0.5 is for lr_schedule=wsd alone: cosine falls"),
        ("init.step=3", "init: step is that of a checkpoint of init.run, which is not set"),
        ("init.sha256=abc", "init.sha256: 'abc' does not fit"),
        ("init.state=everything", "init: state is that of a checkpoint of init.run, which is not set"),
        ("checkpoint.at_tokens=[0]", "checkpoint.at_tokens.0: '0' does not fit: input should be greater than or equal"),
        ("training.min_learning_rate=1", "min_learning_rate 1 is the schedule's end and must not be above"),
    ],
)
def test_mistakes_in_overrides_are_named(override: str, message: str) -> None:
    (problem,) = problems_of(override)
    assert message in problem


def test_a_section_without_a_kind_has_its_default_kind() -> None:
    position = resolve("gqa_1.5B", overrides=["model.position.base=1e4"]).model.position
    assert position == RopeConfig(base=1e4)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("gqa_1.5B", ["model.position.kind=none", "model.position.base=1"], "position.base: is no key of kind none"),
        (
            "gqa_1.5B",
            ["training.lr_schedule=trapezoid", "training.lr_warmup_fraction=0.9"],
            "lr_warmup_fraction 0.9 and lr_decay_fraction 0.2 are more than all steps together",
        ),
        ("relative_1.5B", ["model.position.max_distance=16"], "16 must be above 16, half of the 32 buckets"),
        ("mla_1.5B", ["model.attention.query_groups=2"], "model.attention.query_groups: is no key of kind mla"),
        (
            "mla_1.5B",
            ["model.attention.qk_rope_head_dim=7"],
            "attention.qk_rope_head_dim, or its share (position.share), must be even and above 0, not 7",
        ),
        ("mla_1.5B", ["model.attention.kv_lora_rank=0"], "model.attention.kv_lora_rank: '0' does not fit"),
        ("mla_1.5B", ["model.hidden_size=x"], "model.hidden_size: 'x' does not fit"),
        ("mla_1.5B", ["model.position.kind=alibi"], "MLA has a part of its keys for RoPE and takes no other encoding"),
        ("nsa_1.5B", ["model.position.kind=relative"], "take no bias on their scores, as position.kind=relative is"),
        (
            "nsa_1.5B",
            ["model.attention.compress_stride=12"],
            "compress_block 32 is not a multiple of compress_stride 12",
        ),
        ("nsa_1.5B", ["model.attention.select_block=40"], "select_block 40 is not a multiple of compress_stride 16"),
        ("nsa_1.5B", ["model.attention.select_block=16"], "compress_block 32 must not be above select_block 16"),
        ("nsa_1.5B", ["model.attention.select_count=2"], "select_count 2 leaves no room for the first and two local"),
        ("nsa_1.5B", ["model.attention.window=0"], "model.attention.window: '0' does not fit"),
        ("nsa_1.5B", ["kernels.attention=flash"], "has kernels of its own"),
        ("relative_1.5B", ["kernels.attention=flash"], "put a bias on the scores"),
        ("gqa_1.5B", ["kernels.attention=flash", "parallel.cp=2"], "parts of a sequence"),
    ],
)
def test_mistakes_in_keys_of_a_variant_are_named(name: str, overrides: list[str], message: str) -> None:
    (problem,) = problems_of(*overrides, name=name)
    assert message in problem


def test_the_ratios_of_nsa_match_the_paper() -> None:
    assert resolve("nsa_1.5B").model.attention_variant.ratios(resolve("nsa_1.5B").model) == (2, 2, 2)


def test_an_attention_kernel_can_be_chosen() -> None:
    assert resolve("mla_1.5B", overrides=["kernels.attention=flash"]).kernels.attention == "flash"


def test_mlas_widths_follow_the_backbone_unless_set() -> None:
    follow = resolve("mla_0.5B", overrides=["model.hidden_size=1024", "model.attention.kv_lora_rank=100"])
    assert follow.model.attention == MLAConfig(
        kv_lora_rank=100, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64
    )
    assert resolve("mla_3B").model.attention == MLAConfig(
        kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    )


def test_all_mistakes_are_reported_at_once() -> None:
    problems = problems_of("trace=64", "training.seq_len=x", "model.heads=5", "training.dtype=int8", "oops")
    assert len(problems) == 5
    assert {"trace", "training.seq_len", "model", "training.dtype"} <= {each.split(":")[0] for each in problems}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gqa_15B", "did you mean gqa_1.5B?"),
        ("gqa-0.5B", "did you mean gqa_0.5B?"),
        ("../../etc/passwd", "the runs are mqa_0.5B, "),
    ],
)
def test_wrong_names_are_refused(name: str, message: str) -> None:
    (problem,) = problems_of(name=name)
    assert message in problem


TEXTS = st.one_of(st.text(), st.tuples(st.sampled_from(sorted(settable_keys())), st.text()).map("=".join))


@pytest.mark.parametrize("examples", [20, pytest.param(100, marks=pytest.mark.proof)])
def test_any_text_resolves_or_is_refused_in_printable_lines(examples: int) -> None:
    @settings(max_examples=examples)
    @given(st.lists(TEXTS, max_size=4))
    def tried(overrides: list[str]) -> None:
        problems: tuple[str, ...] = ()
        try:
            resolve("gqa_0.5B", True, overrides)
        except ConfigError as error:
            problems = error.problems
        assert all(problem and problem.isprintable() for problem in problems)

    tried()


def test_an_override_of_the_length_replaces_that_of_the_file() -> None:
    assert resolve("gqa_0.5B", True).training.steps is not None
    training = resolve("gqa_0.5B", True, ["training.tokens=100000"]).training
    assert (training.tokens, training.steps) == (100_000, None)


def test_a_rise_in_tokens_replaces_the_share_of_steps_and_is_kept_in_json() -> None:
    training = resolve("gqa_0.5B", True, ["training.lr_warmup_tokens=4096"]).training
    assert (training.lr_warmup_tokens, training.lr_warmup_fraction) == (4096, None)
    assert TrainingConfig.model_validate_json(training.model_dump_json(), strict=True) == training
    assert resolve("gqa_0.5B", True, ["training.lr_warmup_fraction=null"]).training.lr_warmup_fraction == 0.1
    both = problems_of("training.lr_warmup_tokens=4096", "training.lr_warmup_fraction=0.2")
    assert both == ("training: lr_warmup_tokens and lr_warmup_fraction both set the rise: set one of them",)


@pytest.mark.parametrize("name", RUNS)
def test_a_config_round_trips_through_json(name: str) -> None:
    config = resolve(name, True, ["data.path=a\n$(b) ü", "training.learning_rate=0.1", "data.split=[0.7,0.2,0.1]"])
    assert RunConfig.model_validate_json(config.model_dump_json(), strict=True) == config


@pytest.mark.parametrize("name", ["../gqa", "gqa\n", ".", "..", "", "a/b", "$(x)", "a" * 65])
def test_a_name_that_could_leave_the_output_folder_is_refused(name: str) -> None:
    content = resolve("gqa_0.5B").model_dump()
    with pytest.raises(ValidationError, match="variant"):
        RunConfig.model_validate({**content, "variant": name})


def test_a_blend_is_read_from_a_list_and_from_json() -> None:
    data = DataConfig(path=[3, "/a/x", "1", "/b/y"])
    assert (data.sources, data.weights) == (("/a/x", "/b/y"), (0.75, 0.25))
    assert DataConfig.model_validate_json(data.model_dump_json()) == data
    assert (DataConfig().sources, DataConfig().weights) == ((None,), (1.0,))
    assert resolve("gqa_1.5B").data.split == resolve("gqa_1.5B", smoke=True).data.split == (99, 1, 0)
    assert DataConfig(path="a.txt").sources == ("a.txt",)
    for wrong in (5, {"/a/x": 1}):
        with pytest.raises(ValidationError, match=r"neither a path nor weights and paths in turn"):
            DataConfig(path=wrong)
