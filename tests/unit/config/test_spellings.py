"""Short names of keys, numbers as people write them, and variants in sizes that no suite has."""

from __future__ import annotations

import itertools

import pytest

from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve, settable_keys
from efficientbench.config.matrix import load_matrix
from efficientbench.config.spellings import ALIASES, SPELLINGS, TRAINING, TUNING, key_of, plain_number
from efficientbench.costs.model import count_parameters
from efficientbench.sweep.combinations import parse_axes
from efficientbench.sweep.selection import select


@pytest.mark.parametrize(
    ("key", "text", "number"),
    [
        ("training.tokens", "10B", "10000000000"),
        ("training.tokens", "1.5B", "1500000000"),
        ("training.tokens", "1.25B", "1250000000"),
        ("training.global_batch_tokens", "524.288k", "524288"),
        ("training.tokens", "1e9", "1000000000"),
        ("training.tokens", "500M", "500000000"),
        ("training.tokens", "20x", "20x"),
        ("training.seq_len", "64k", "65536"),
        ("data.max_length", "8k", "8192"),
        ("training.tokens", "8k", "8000"),
        ("faults.hang_limit_s", "2h", "7200"),
        ("faults.hang_limit_s", "1.5min", "90"),
        ("faults.hang_limit_s", "30m", "1800"),
        ("faults.hang_limit_s", "0.25h", "900"),
        ("measurement.sample_interval_s", "100ms", "0.100"),
        ("faults.hang_limit_s", "2M", "2M"),
        ("training.learning_rate", "3e-4", "3e-4"),
        ("training.steps", "2.5", "2.5"),
        ("training.steps", "010", "010"),
        ("training.steps", "1e999", "1e999"),
        ("training.steps", "5 k", "5 k"),
    ],
)
def test_numbers_as_people_write_them_are_read(key: str, text: str, number: str) -> None:
    assert plain_number(key, text) == number


def test_short_names_set_the_same_keys() -> None:
    typed = ["tokens=1B", "gbs=64", "mbs=2", "lr=2e-4", "seq_length=1024", "tp=2", "eval_every=1e2", "seed=7"]
    keys = ["tokens=1000000000", "global_batch_size=64", "micro_batch_size=2", "learning_rate=0.0002"]
    keys += ["seq_len=1024", "validation_interval=100", "seed=7"]
    assert resolve("gqa_1.5B", overrides=typed) == resolve(
        "gqa_1.5B", overrides=[*(f"training.{key}" for key in keys), "parallel.tp=2"]
    )
    assert set(ALIASES.values()) <= settable_keys().keys()
    assert parse_axes(["lr=1e-3,2e-3"]) == {"training.learning_rate": ("1e-3", "2e-3")}


def test_a_batch_of_tokens_in_the_key_of_sequences_is_answered() -> None:
    for typed in ("gbs=4M", "training.global_batch_size=4M"):
        with pytest.raises(ConfigError, match=r"no 4M sequences: 4M tokens are training\.global_batch_tokens=4M"):
            resolve("gqa_1.5B", overrides=[typed])


def test_names_and_sizes_are_found_in_any_case() -> None:
    assert [resolve(name).name for name in ("GQA_1.5b", "gqa_50m")] == ["gqa_1.5B", "gqa_50M"]
    assert [run.name for run in select(load_matrix(), ["MQA", "gqa_0.5b"], ["0.5b"])] == ["mqa_0.5B", "gqa_0.5B"]


def test_a_name_has_one_meaning() -> None:
    names = [name for each in SPELLINGS for name in each.names.split()]
    assert len(names) == len(set(names))
    # What is no key is a sentence for people.
    assert all(" " in each for each in {*TRAINING.values(), *TUNING.values()} if key_of(each) is None)


def test_names_of_switches_and_shares_set_our_keys() -> None:
    typed = ["bf16=True", "gradient-checkpointing=true", "target_param_data_ratio=20", "adam-beta2=0.9"]
    training = resolve("gqa_1.5B", overrides=typed).training
    assert (training.dtype, training.recompute, training.beta2) == ("bf16", "full", 0.9)
    assert training == resolve("gqa_1.5B", overrides=["tokens=20x", "recompute=full", "training.beta2=0.9"]).training


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("batch_size=8", "batch_size: training.micro_batch_size counts a device's sequences, training.global_batch"),
        ("gradient_accumulation_steps=4", "it follows: training.global_batch_size = micro-batch × data-parallel"),
        ("logging_steps=10", "logging_steps: every step is logged; leave it out"),
        ("bf16=False", "bf16=False: leave it out, or set training.dtype; bf16=true is training.dtype=bf16"),
        ("warmup_steps=100", "set training.lr_warmup_tokens or lr_warmup_fraction;"),
        ("deepspeed=ds_config_zero3.json", "deepspeed: parallel.* shards a training"),
    ],
)
def test_a_name_without_a_key_is_answered(override: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("gqa_1.5B", overrides=[override])
    (problem,) = caught.value.problems
    assert told in problem


def test_an_axis_takes_no_name_whose_value_means_another() -> None:
    # A ratio of 20 is no 20 tokens.
    for axis in ("target_param_data_ratio=20,40", "bf16=True,False", "batch_size=1,2"):
        with pytest.raises(ConfigError, match=r"no key; training\."):
            parse_axes([axis])


def test_text_is_no_number() -> None:
    config = resolve("gqa_1.5B", overrides=["label=10B", "data.path=1e9"])
    assert (config.label, config.data.path) == ("10B", "1e9")


def test_a_global_batch_may_be_given_in_tokens() -> None:
    config = resolve("gqa_1.5B", smoke=True, overrides=["total_batch_size=9600"])
    assert (config.training.global_batch_size, config.training.seq_len) == (100, 96)
    again = type(config).model_validate(config.model_dump())
    assert again == config
    longer = resolve("gqa_1.5B", overrides=["total_batch_size=524288", "max_seq_len=4096"])
    assert longer.training.global_batch_size == 128


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["total_batch_size=5000"], "5,000 is no whole number of sequences of 2,048 tokens: 4,096 is"),
        (["total_batch_size=4096", "gbs=3"], "4,096 is 2 sequences, and global_batch_size 3: set one of them"),
        (["total_batch_size=0"], "training.global_batch_tokens: '0' does not fit"),
        (["total_batch_size=x"], "training.global_batch_tokens: 'x' does not fit"),
        (["total_batch_size=inf"], "training.global_batch_tokens: 'inf' does not fit"),
        (["depth=12"], "depth: is decided by the run's name, as in nanochat_d12"),
    ],
)
def test_an_invalid_global_batch_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("gqa_1.5B", overrides=overrides)
    (problem,) = caught.value.problems
    assert message in problem


@pytest.mark.parametrize(
    ("name", "named_size"),
    [("mha_50M", 50e6), ("mha_125M", 125e6), ("mha_350M", 350e6), ("mha_7B", 7e9), ("mha_13B", 13e9)],
)
def test_sizes_outside_the_matrix_have_the_parameters_of_their_names(name: str, named_size: float) -> None:
    config = resolve(name)
    assert count_parameters(config.model).total == pytest.approx(named_size, rel=0.25)
    assert config.model.attention.query_groups == config.model.heads


@pytest.mark.parametrize("size", ["7B", "13B", "32B"])
def test_a_size_for_a_cluster_has_a_batch_of_tokens(size: str) -> None:
    def batch(*overrides: str, smoke: bool = False) -> tuple[int | None, int]:
        training = resolve(f"gqa_{size}", smoke, overrides).training
        return training.global_batch_tokens, training.global_batch_size

    assert batch() == (4_194_304, 2048)
    assert batch("seq_len=8192") == (4_194_304, 512)
    assert batch("gbs=64") == (None, 64)
    assert batch(smoke=True) == (None, 8)


@pytest.mark.parametrize("apart", [11, pytest.param(1, marks=pytest.mark.proof)])
def test_every_variant_resolves_in_every_size(apart: int) -> None:
    """Every eleventh pair has each variant and each size; all of them take seconds."""
    matrix = load_matrix()
    for variant, size in list(itertools.product(matrix.variants, matrix.sizes))[::apart]:
        full, smoke = resolve(f"{variant}_{size}").model, resolve(f"{variant}_{size}", smoke=True).model
        assert (full.hidden_size, full.heads) == (8 * smoke.hidden_size, smoke.heads)


def test_a_dense_model_is_as_wide_as_the_active_experts_of_a_token() -> None:
    for size in ("0.5B", "1.5B"):
        moe, dense = resolve(f"moe_{size}x8").model, resolve(f"dense_{size}x2").model
        router = moe.layers * moe.hidden_size * moe.moe.experts
        assert count_parameters(moe).active - router == count_parameters(dense).total


def test_a_part_of_a_name_lists_the_matching_runs() -> None:
    with pytest.raises(ConfigError, match=r"'gqa': did you mean gqa_0\.5B, gqa_1\.5B, gqa_3B\?"):
        resolve("gqa")


def test_a_sweep_accepts_sizes_outside_the_suites() -> None:
    matrix = load_matrix()
    names = [run.name for run in select(matrix, ["gqa", "mha"], ["0.5B", "7B"])]
    assert names == ["gqa_0.5B", "gqa_7B", "mha_0.5B", "mha_7B"]
    assert [run.name for run in select(matrix, ["dense"], ["1.5B", "1.5Bx2"])] == ["dense_1.5B", "dense_1.5Bx2"]
    assert [run.name for run in select(matrix, ["mla_7B"])] == ["mla_7B"]
    with pytest.raises(ConfigError, match="mha is in no suite: name its sizes by --sizes"):
        select(matrix, ["mha"])
    # Nothing that is named is left out in silence.
    for only, sizes, lacking in (((), ("0.5B", "7B"), "7B"), (("moe",), ("0.5Bx8", "3B"), "3B")):
        with pytest.raises(ConfigError, match=f"no chosen run has the size {lacking}; available sizes: "):
            select(matrix, only, sizes)
