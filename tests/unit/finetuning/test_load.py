"""The configuration of a named fine-tuning."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from support.repository import ROOT
from typer.testing import CliRunner

from efficientbench.basics.errors import ConfigError
from efficientbench.cli.app import app
from efficientbench.config.scripts import check_scripts
from efficientbench.config.tunings import named_tunings
from efficientbench.finetuning.load import WORDS, resolve_tuning, settable_keys, tuning_scripts


def test_every_method_has_every_size() -> None:
    assert len(named_tunings()) == 7 * 6
    config = resolve_tuning("lora_32B")
    assert (config.model, config.adapter.r, config.adapter.alpha) == ("Qwen/Qwen2.5-32B-Instruct", 64, 128)
    assert (config.training.learning_rate, config.data.max_length, config.zero.stage) == (2e-5, 2048, 3)
    assert resolve_tuning("rslora_qwen3_32B").model == "Qwen/Qwen3-32B"
    assert {resolve_tuning(name, smoke=True).model for name in named_tunings()} == {"tiny"}


def test_scripts_are_current() -> None:
    check_scripts(further=tuning_scripts())


def test_the_keys_of_the_recipe_are_accepted() -> None:
    words = (
        "use_curriculum=False",
        "curriculum_seed=7",
        "lora_r=4",
        "lora_alpha=8",
        "lora_dropout=0.1",
        "cutoff_len=512",
    )
    words += ("target_modules=[q_proj,v_proj]", "micro_batch_size=2", "num_epochs=2")
    config = resolve_tuning("lora_tiny", overrides=words)
    assert (config.curriculum.use, config.curriculum.seed) == ("off", 7)
    assert (config.adapter.r, config.adapter.alpha, config.adapter.dropout) == (4, 8, 0.1)
    assert config.adapter.targets == ("q_proj", "v_proj")
    # The size has steps of its own, which epochs take the place of.
    assert (config.training.micro_batch_size, config.training.epochs, config.training.steps) == (2, 2, None)
    assert config.data.max_length == 512
    assert resolve_tuning("lora_tiny", overrides=["curriculum=required"]).curriculum.use == "required"
    loaded = resolve_tuning("lora_tiny", overrides=["dataloader_num_workers=4", "dataloader_pin_memory=False"]).data
    assert (loaded.workers, loaded.pin_memory) == (4, False)


def test_the_keys_in_the_launchers_help_are_accepted() -> None:
    told = (ROOT / "launchers" / "run_named.sh").read_text(encoding="utf-8").partition("usage_finetune")[2]
    examples = re.findall(r"\w+=[\w.-]+", told.partition("key=value  ")[2].partition("\n")[0])
    assert len(examples) == 2
    resolve_tuning("lora_tiny", overrides=examples)


def test_the_keys_of_pretraining_and_of_transformers_are_accepted() -> None:
    words = ("lr=3e-4", "gbs=16", "mbs=4", "seq_len=256", "steps=1e2", "warmup_steps=5", "eval_every=7", "save_steps=9")
    config = resolve_tuning("lora_tiny", overrides=words)
    training = config.training
    assert (training.learning_rate, training.global_batch_size, training.micro_batch_size) == (3e-4, 16, 4)
    assert (training.steps, training.warmup_steps, training.validate_every_steps) == (100, 5, 7)
    assert (config.data.max_length, config.checkpoint.interval) == (256, 9)
    training = resolve_tuning("lora_tiny", overrides=["seed=7", "clip_grad=0.5", "eval_interval=3"]).training
    assert (training.seed, training.clip, training.validate_every_steps) == (7, 0.5, 3)
    assert set(WORDS.values()) <= set(settable_keys())


def test_the_words_of_the_trainer_and_of_llm_adapters_are_accepted() -> None:
    words = ["model_name_or_path=owner/name", "offload_optimizer=True", "gradient_checkpointing=False", "bf16=True"]
    config = resolve_tuning("lora_tiny", overrides=[*words, "target_modules=q_proj v_proj"])
    assert (config.model, config.zero.offload) == ("owner/name", "optimizer")
    assert (config.training.recompute, config.training.dtype) == (False, "bf16")
    assert config.adapter.targets == ("q_proj", "v_proj")


@pytest.mark.parametrize(
    ("name", "override", "told"),
    [
        ("lora_33B", "", "there is no fine-tuning called 'lora_33B': did you mean lora_32B?"),
        ("lora_tiny", "training.step=3", "training.step: unknown key; did you mean training.steps"),
        ("lora_tiny", "zero.stage=1", "zero.stage: "),
        ("lora_tiny", "curriculum=maybe", "curriculum.use: "),
        ("lora_tiny", "steps", "an override is written key=value"),
        ("lora_tiny", "train_on_inputs=False", "only answers are learned, as by train_on_inputs=False; leave it out"),
        ("lora_tiny", "lr_scheduler_type=linear", "the learning rate falls by a cosine to 0; leave it out"),
        ("lora_tiny", "deepspeed=ds.json", "deepspeed: zero.* keys are written into DeepSpeed's configuration"),
        # Names of trainings: keys that a fine-tuning lacks are not offered.
        ("lora_tiny", "tp=2", "tp: unknown key; keys begin with adapter, "),
    ],
)
def test_a_mistake_is_reported_with_its_key(name: str, override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=r".") as caught:
        resolve_tuning(name, overrides=[override] if override else [])
    assert told in str(caught.value)


def test_a_batch_that_cannot_be_divided_is_refused_with_the_nearest_sizes() -> None:
    config = resolve_tuning("lora_32B", overrides=["training.global_batch_size=100"])
    assert resolve_tuning("lora_32B").accumulation(16) == 8
    with pytest.raises(ValueError, match="the nearest that is: 96"):
        config.accumulation(16)


def test_groups_of_hpz_that_do_not_divide_the_ranks_are_refused() -> None:
    config = resolve_tuning("lora_32B", overrides=["zero.hpz=7"])
    with pytest.raises(ValueError, match="groups of 7 do not divide 16 ranks; the nearest that do: 8"):
        config.accumulation(16)
    # DeepSpeed makes one group of fewer ranks.
    assert config.accumulation(4) == 32


def test_a_warm_up_as_long_as_the_run_is_refused() -> None:
    config = resolve_tuning("lora_32B")
    assert (config.warmup(176), config.warmup(5000)) == (17, 100)
    with pytest.raises(ValueError, match="200 is not below the 176 steps"):
        resolve_tuning("lora_32B", overrides=["training.warmup_steps=200"]).warmup(176)


def test_python_3_10_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efficientbench.cli.finetune.sys", SimpleNamespace(version_info=(3, 10, 14)))
    done = CliRunner().invoke(app, ["finetune", "lora_tiny", "--smoke"])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == "fine-tuning needs Python 3.11 or newer, as TRL does; this is 3.10.14"


def test_options_of_the_plan_without_plan_are_refused() -> None:
    for option in (("--device", "H100 SXM"), ("--memory-gb", "80")):
        done = CliRunner().invoke(app, ["finetune", "lora_7B", *option])
        assert (done.exit_code, "need --plan" in done.output) == (2, True)


def test_a_name_or_key_of_pretraining_is_refused_with_the_right_one() -> None:
    with pytest.raises(ConfigError, match="^gqa_7B is a training: efficientbench run gqa_7B$"):
        resolve_tuning("gqa_7B")
    with pytest.raises(ConfigError, match=r"training\.seq_len: unknown key; did you mean data\.max_length\?"):
        resolve_tuning("lora_7B", overrides=["training.seq_len=1024"])
