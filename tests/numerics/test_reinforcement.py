"""Gradients of fixed rollouts: those of the policy by autograd in float64, TRL's, and none where rewards are equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from oracles import mixtral, qwen2
from oracles.oracle import build, relative_error, weights_of
from oracles.plain_decoder import PlainDecoder
from support.configs import tiny

from efficientbench.config.schema import RunConfig

pytestmark = pytest.mark.usefixtures("single_rank")

QUESTIONS, SAMPLES, LENGTH, SIZE = 2, 3, 13, 2
PROMPTS, LENGTHS = (4, 6), (9, 14, 11, 14, 8, 10)
UNLIKE, ALIKE = [[1.0, 0.0, 1.0], [0.3, -2.0, 0.1]], [[0.1, 0.1, 0.1], [1.0, 1.0, 1.0]]
# What makes them like a model of transformers, and that model.
BESIDE: dict[str, tuple[list[str], Callable[..., torch.nn.Module], Callable[..., dict[str, torch.Tensor]]]] = {
    "gqa_1.5B": ([], qwen2.same_weights, qwen2.to_qwen2),
    "moe_1.5Bx8": (["model.attention.qkv_bias=false"], mixtral.same_weights, mixtral.to_mixtral),
}


@pytest.fixture(autouse=True)
def own_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron keeps the scale of the experts' loss in its class, in the shape that the process first gave it."""
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler

    monkeypatch.setattr(MoEAuxLossAutoScaler, "main_loss_backward_scale", None)


def configured(name: str) -> RunConfig:
    return tiny(
        name,
        *("training.objective=rl", f"rl.samples={SAMPLES}", "rl.max_new_tokens=8", *BESIDE[name][0]),
        *("model.init_std=0.2", "training.gradient_clip=0", "training.weight_decay=0"),
        *(f"training.seq_len={LENGTH}", f"training.micro_batch_size={SIZE}"),
        f"training.global_batch_size={QUESTIONS * SAMPLES}",
    )


def written(config: RunConfig) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the tokens of each sample, prompt first, and which of them the model chose."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for row, length in enumerate(LENGTHS):
        places = torch.arange(length)
        tokens = torch.randint(config.model.vocab_size, (length,), generator=generator)
        # A tool wrote the eighth token of each.
        found.append((tokens, (places >= PROMPTS[row // SAMPLES]) & (places != 7)))
    return found


def advantages_of(rewards: list[list[float]]) -> list[float]:
    return [reward - sum(each) / SAMPLES for each in rewards for reward in each]


def our_step(config: RunConfig, model: torch.nn.Module, rewards: list[list[float]]) -> tuple[float, float, int]:
    """Make a step on the rollouts; return its loss, the norm of its gradients and its targets."""
    from efficientbench.training.data.batch import Batch
    from efficientbench.training.events import Event, StepEnded
    from efficientbench.training.reinforcement.advantages import Rollout, advantages, micro_batches
    from efficientbench.training.trainer import Trainer
    from efficientbench.training.update.optimizer import build_optimizer, wrap_data_parallel

    gained = advantages(torch.tensor(rewards)).flatten().tolist()
    rollouts = [
        Rollout(tuple(tokens.tolist()), tuple(sampled.tolist()), gain)
        for (tokens, sampled), gain in zip(written(config), gained, strict=True)
    ]
    counted = sum(sum(rollout.sampled) for rollout in rollouts)

    class Given:
        device = torch.device("cpu")
        micro_batches = QUESTIONS * SAMPLES // SIZE

        def training_step(self, step: int) -> Iterator[Batch]:
            return micro_batches(rollouts, LENGTH, SIZE, counted / self.micro_batches, self.device)

    events: list[Event] = []
    wrapped = wrap_data_parallel(model, config)
    optimizer = build_optimizer([wrapped], config)
    Trainer(config, 1, [wrapped], optimizer, Given(), [events.append]).train_step(1)  # type: ignore[arg-type]
    (ended,) = [event for event in events if isinstance(event, StepEnded)]
    assert ended.gradient_norm is not None
    return ended.loss, ended.gradient_norm, ended.supervised_tokens


def our_gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    from efficientbench.model.initial_weights import global_parameters

    return {name: parameter.main_grad for name, parameter in global_parameters(model).items()}


@pytest.mark.parametrize("name", BESIDE)
def test_gradients_match_those_of_the_policy(name: str) -> None:
    config = configured(name)
    model, rollouts = build(config), written(config)
    oracle = PlainDecoder(weights_of(model), config.model)
    counted, expected = sum(int(sampled.sum()) for _, sampled in rollouts), torch.zeros((), dtype=torch.float64)
    for (tokens, sampled), gain in zip(rollouts, advantages_of(UNLIKE), strict=True):
        logarithms = oracle(tokens[None, :-1]).log_softmax(dim=-1)[0, torch.arange(len(tokens) - 1), tokens[1:]]
        expected = expected - gain * logarithms[sampled[1:]].sum() / counted
    expected.backward()
    loss, _, targets = our_step(config, model, UNLIKE)
    assert (targets, loss) == (counted, pytest.approx(expected.item(), rel=1e-5))
    for parameter, found in our_gradients(model).items():
        gradient = oracle.weights[parameter].grad
        assert gradient is not None
        assert relative_error(found, gradient) < 1e-5, parameter


@pytest.mark.parametrize("name", BESIDE)
def test_equal_rewards_give_no_gradient(name: str) -> None:
    from efficientbench.training.reinforcement.advantages import without_signal

    config = configured(name)
    model = build(config)
    before = weights_of(model)
    assert without_signal(torch.tensor(ALIKE)) == QUESTIONS
    assert our_step(config, model, ALIKE)[:2] == (0, 0)
    assert all(torch.equal(before[parameter], weight) for parameter, weight in weights_of(model).items())


def test_advantages_match_hand_counts() -> None:
    from efficientbench.training.reinforcement.advantages import advantages, without_signal

    # The mean of these equal numbers is not one of them in float32.
    rewards = torch.tensor([[0.1] * 3, [1.0, 0.0, 0.0]])
    assert advantages(rewards)[0].tolist() == [0, 0, 0]
    assert advantages(rewards)[1].tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert without_signal(rewards) == 1


@pytest.mark.proof
@pytest.mark.parametrize("name", BESIDE)
def test_gradients_match_trl(name: str, tmp_path: Path) -> None:
    """TRL's GRPOTrainer, told to leave out what our loss leaves out; from the rewards on all is its own."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    from efficientbench.training.reinforcement.advantages import advantages

    _, same_weights, renamed = BESIDE[name]
    config = configured(name)
    model, rollouts = build(config), written(config)
    cut = [(*each, PROMPTS[row // SAMPLES]) for row, each in enumerate(rollouts)]

    def answered(prompts: list[str], trainer: object) -> dict[str, object]:
        return {
            "prompt_ids": [tokens[:first].tolist() for tokens, _, first in cut],
            "completion_ids": [tokens[first:].tolist() for tokens, _, first in cut],
            "env_mask": [sampled[first:].int().tolist() for _, sampled, first in cut],
            # The policy's own, since each answer is learned from once.
            "logprobs": None,
        }

    words = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    trainer = trl.GRPOTrainer(
        same_weights(weights_of(model), config.model),
        lambda completions, **columns: [reward for each in UNLIKE for reward in each],
        trl.GRPOConfig(
            str(tmp_path),
            per_device_train_batch_size=len(rollouts),
            num_generations=SAMPLES,
            beta=0.0,
            scale_rewards="none",
            loss_type="dapo",
            # Of experts.
            router_aux_loss_coef=0.0,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to=[],
        ),
        datasets.Dataset.from_dict({"prompt": ["a"] * len(rollouts)}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, eos_token="a", pad_token="a"),
        rollout_func=answered,
    )
    trainer.model.eval()
    given = trainer._generate_and_score_completions([{"prompt": "a"} for _ in rollouts])
    gained = advantages(torch.tensor(UNLIKE)).flatten()
    torch.testing.assert_close(given["advantages"], gained, rtol=0, atol=1e-6)
    assert int(given["num_items_in_batch"]) == sum(int(sampled.sum()) for _, sampled in rollouts)
    expected = trainer._compute_loss(trainer.model, given)
    expected.backward()
    our_step(config, model, UNLIKE)
    found = renamed(our_gradients(model), config.model)
    for each, parameter in trainer.model.named_parameters():
        assert relative_error(found[each], parameter.grad) < 1e-5, each
