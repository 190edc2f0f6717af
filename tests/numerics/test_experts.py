"""Fine-grained and shared experts against transformers' classes; the bias that balances them."""

from __future__ import annotations

import pytest
import torch
from oracles.experts import renamed, same_weights
from oracles.mixtral import auxiliary_losses
from oracles.oracle import assert_gradients_equal, build, gradients_beside, relative_error, text, weights_of
from support.configs import FINE, MODELS, tiny, tiny_model
from support.releases import TRANSFORMERS_5
from support.training_steps import our_trainer, random_tokens

from efficientbench.config.schema import RunConfig
from efficientbench.model.moe import routers, take_routing

pytestmark = pytest.mark.usefixtures("single_rank")

# Weights of this size give logits that are far apart and gradients that reach every expert.
WIDE = ("model.init_std=0.2", "model.embedding_multiplier=1", "model.moe.auxiliary_loss=0")
DENSE = ("model.layers=3", "model.kinds={dense: {moe: false, ffn_hidden_size: 56}}")
QWEN3 = (
    "model.qk_norm=true",
    "model.attention.qkv_bias=false",
    "model.moe.experts=16",
    "model.moe.top_k=8",
    "model.ffn_hidden_size=24",
)
CLASSES = {
    "Qwen3MoeForCausalLM": ("moe_1.5Bx8", QWEN3),
    "Qwen3MoeForCausalLM, not normalized, one layer dense": (
        "moe_1.5Bx8",
        (*QWEN3, "model.moe.normalized=false", "model.pattern=[own,dense]", *DENSE),
    ),
    "DeepseekV3ForCausalLM": (
        MODELS[FINE][0],
        ("model.attention.kind=mla", *MODELS[FINE][1], *DENSE, "model.attention.q_lora_rank=20"),
    ),
}


def with_bias(config: RunConfig, size: float = 0.2) -> torch.nn.Module:
    """A model whose routers' biases are no zeros."""
    model = build(config)
    for number, router in enumerate(routers(model)):
        if router.expert_bias is not None:
            generator = torch.Generator().manual_seed(number)
            router.expert_bias.copy_(size * torch.randn(len(router.expert_bias), generator=generator))
    return model


@TRANSFORMERS_5
@pytest.mark.parametrize("name", CLASSES)
def test_logits_loss_and_gradients_equal_those_of_transformers(name: str) -> None:
    run, words = CLASSES[name]
    config = tiny(run, *WIDE, *words)
    model = with_bias(config)
    weights = weights_of(model)
    oracle = same_weights(weights, config)
    assert type(oracle).__name__ == name.partition(",")[0]
    ours = gradients_beside(model, config, lambda tokens: oracle(tokens).logits)
    buffers = {key: tensor for key, tensor in weights.items() if key not in ours}
    assert_gradients_equal(renamed(ours | buffers, config.model), oracle)
    counted = take_routing(model)
    assert counted is not None
    with_experts = torch.zeros(config.model.layers)
    with_experts[list(config.model.expert_layers)] = 1
    choices = 2 * config.training.seq_len * config.model.moe.top_k
    assert torch.equal(counted[:, 1:].sum(dim=1), choices * with_experts)


def test_a_bias_chooses_and_does_not_weigh() -> None:
    config = tiny_model(FINE, *WIDE[:2])
    plain, biased = build(config), with_bias(config)
    router, other = (each.decoder.layers[1].mlp.router for each in (plain, biased))
    x = torch.randn(16, 2, config.model.hidden_size, generator=torch.Generator().manual_seed(1))
    (weights, chosen), (others, differently) = router(x), other(x)
    assert (chosen != differently).any()
    scores = torch.sigmoid(x.flatten(0, 1) @ router.weight.t())
    moe = config.model.moe
    assert moe is not None
    for given, mask, bias in ((weights, chosen, 0), (others, differently, other.expert_bias)):
        best = (scores + bias).topk(moe.top_k).indices
        assert torch.equal(mask, torch.zeros_like(mask).scatter(1, best, True))
        kept = scores * mask
        torch.testing.assert_close(given, moe.scale * kept / kept.sum(dim=1, keepdim=True))


def test_evaluation_and_a_second_model_have_the_bias() -> None:
    from efficientbench.model.gpt import same_model, trained_model

    config = tiny_model(FINE, *WIDE[:2])
    model, tokens = with_bias(config).eval(), text(config, 16)
    weights = weights_of(model)
    split = {key: tensor for key, tensor in weights.items() if "mlp.experts." not in key}
    for key in weights.keys() - split.keys():
        for number, expert in enumerate(weights[key]):
            split[key.replace("mlp.experts.", f"mlp.experts.{number}.")] = expert
    with torch.no_grad():
        logits = model(tokens)
        assert torch.equal(trained_model(config, torch.device("cpu"), split)(tokens), logits)
        second = same_model(model, config, torch.device("cpu"))
        assert torch.equal(second(tokens), logits)
        for router in routers(model):
            router.expert_bias.zero_()
        assert not torch.equal(model(tokens), logits)
        # On one device they share the memory.
        assert torch.equal(second(tokens), model(tokens))


def test_the_loss_over_a_sequence_is_that_of_normalized_sigmoids() -> None:
    """Equations 17 to 20 of arXiv 2412.19437; the choices are those without the bias."""
    config = tiny_model(FINE, *WIDE[:2], "model.moe.auxiliary_loss=10")
    model = with_bias(config)
    [router] = routers(model)
    routed: list[torch.Tensor] = []
    router.register_forward_hook(
        lambda router, given, out: routed.append(given[0].detach() @ router.weight.detach().t())
    )
    model(text(config, config.training.seq_len))
    counted = take_routing(model)
    assert counted is not None

    def normalized(logits: torch.Tensor) -> torch.Tensor:
        return logits.sigmoid() / logits.sigmoid().sum(dim=-1, keepdim=True)

    # [S, B, E], in the order of sequences.
    logits = routed[0].transpose(0, 1).flatten(0, 1)
    [expected] = auxiliary_losses([logits], config.model, sequences=2, probabilities=normalized)
    assert relative_error(counted[1, 0], expected) < 1e-5


def largest_load(config: RunConfig, steps: int) -> float:
    """The largest expert's tokens over the mean in the last 10 of so many steps, where one expert is preferred."""
    from efficientbench.training.events import StepEnded

    torch.manual_seed(0)
    trainer = our_trainer(config, torch.device("cpu"), random_tokens(config, torch.device("cpu")))
    model = trainer.stages[0].module
    common = torch.ones(config.model.hidden_size)
    table = model.embedding.word_embeddings.weight.data
    table += 2 * table.std() * common
    [router] = routers(model)
    router.weight.data[0] += 3 / config.model.hidden_size * common
    loads: list[torch.Tensor] = []

    def listen(event: object) -> None:
        if isinstance(event, StepEnded) and event.routing is not None:
            loads.append(torch.tensor(event.routing.tokens_per_expert[0]))

    trainer.listeners.append(listen)
    for step in range(1, steps + 1):
        trainer.train_step(step)
    last = torch.stack(loads[-10:]).double().sum(dim=0)
    assert torch.stack(loads[:1]).max() >= 2 * last.mean() / 10
    return (last.max() / last.mean()).item()


@pytest.mark.proof
def test_a_bias_balances_experts_of_which_one_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler

    # An earlier test's backward pass without a trainer leaves a scale of another shape.
    monkeypatch.setattr(MoEAuxLossAutoScaler, "main_loss_backward_scale", None)
    words = ("model.layers=1", "model.moe.experts=8", "model.moe.top_k=2", "model.moe.scores=sigmoid")
    shapes = (
        "training.micro_batch_size=4",
        "training.global_batch_size=4",
        "training.seq_len=64",
        "training.learning_rate=1e-5",
    )
    config = tiny("moe_1.5Bx8", *words, *shapes, "model.moe.auxiliary_loss=0", "training.steps=200")
    assert largest_load(config, 200) >= 2
    moe = config.model.moe.model_copy(update={"bias_rate": 0.005})
    config = config.model_copy(update={"model": config.model.model_copy(update={"moe": moe})})
    assert largest_load(config, 200) <= 1.2
