"""`finetune --plan` from the command line, with the figures of the design's model."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from efficientbench.basics.errors import ConfigError
from efficientbench.cli.app import app
from efficientbench.finetuning.load import resolve_tuning
from efficientbench.finetuning.planning.plan import asked
from efficientbench.finetuning.planning.request import plan_request


def test_the_command_plans_32_billion_parameters_on_two_nodes() -> None:
    plan = asked(plan_request(resolve_tuning("lora_32B"), 16, 8, None, None))
    shape, trained = plan.request.shape, plan.request.trained
    assert (shape.parameters, trained.parameters(shape)) == (32_763_876_352, 536_870_912)
    assert plan.flops.training / 1e9 == pytest.approx(135.2, abs=0.05)
    assert (plan.layout.micro, plan.layout.accumulation, plan.request.memory_bytes) == (1, 8, 64e9)
    done = CliRunner().invoke(app, ["finetune", "lora_32B", "--plan", "--device", "H100 SXM"])
    assert done.exit_code == 0, done.output
    for figure in ("32,763,876,352", "536,870,912", "4.10", "fits in 80 GB"):
        assert figure in done.output


def test_a_batch_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ConfigError, match="the nearest that is: 126"):
        plan_request(resolve_tuning("lora_32B"), 18, 9, None, None)


def test_ranks_that_do_not_fill_nodes_are_refused() -> None:
    assert plan_request(resolve_tuning("lora_32B"), 4, 8, None, None).layout.per_node == 4
    with pytest.raises(ConfigError, match="16 ranks are not whole nodes of 5: 15 or 20"):
        plan_request(resolve_tuning("lora_32B"), 16, 5, None, None)


@pytest.mark.parametrize(("target", "told"), [("q_prj", "did you mean q_proj"), ("lm_head", "they are down_proj")])
def test_a_layer_that_the_decoder_lacks_is_refused_in_one_line(target: str, told: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"adapter\.targets: no linear layer of the decoder is named '{target}'.*{told}"
    ):
        plan_request(resolve_tuning("lora_32B", overrides=[f"adapter.targets=[{target}]"]), 16, 8, None, None)
    assert plan_request(resolve_tuning("full_32B", overrides=[f"adapter.targets=[{target}]"]), 16, 8, None, None)


@pytest.mark.parametrize(("device", "tile_bytes"), [(None, 30), ("H100 SXM", 2), ("Ascend 910B1", 30)])
def test_a_fused_loss_takes_less_memory(device: str | None, tile_bytes: int) -> None:
    assert plan_request(resolve_tuning("lora_32B"), 16, 8, device, None).layout.tile_bytes == tile_bytes


def test_hpz_is_limited_to_the_ranks_of_a_node() -> None:
    config = resolve_tuning("lora_32B", overrides=["zero.hpz=8"])
    assert plan_request(config, 4, 4, "H100 SXM", None).layout.hpz == 4
    assert plan_request(config, 16, 8, "H100 SXM", None).layout.hpz == 8


def test_more_trained_layers_than_the_model_has_are_refused() -> None:
    config = resolve_tuning("freeze_7B", overrides=["adapter.freeze_layers=1000"])
    with pytest.raises(ConfigError, match=r"^adapter\.freeze_layers: 1000 layers are to be trained, and the model has"):
        plan_request(config, 8, 8, None, None)
