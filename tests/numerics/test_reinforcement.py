"""Gradients of fixed rollouts: those of the policy by autograd in float64, TRL's, and none where rewards are equal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.configs import tiny
from support.oracle import build, relative_error, weights_of
from support.plain_decoder import PlainDecoder
from support.qwen2 import same_weights, to_qwen2

from efficientbench.config.schema import RunConfig

pytestmark = pytest.mark.usefixtures("single_rank")

QUESTIONS, SAMPLES, LENGTH, SIZE = 2, 3, 13, 2
PROMPTS, LENGTHS = (4, 6), (9, 14, 11, 14, 8, 10)
UNLIKE, ALIKE = [[1.0, 0.0, 1.0], [0.3, -2.0, 0.1]], [[0.1, 0.1, 0.1], [1.0, 1.0, 1.0]]


def configured() -> RunConfig:
    return tiny(
        "gqa_1.5B",
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
    from efficientbench.reinforcement.advantages import Rollout, advantages, micro_batches
    from efficientbench.training.batches import Batch
    from efficientbench.training.events import Event, StepEnded
    from efficientbench.training.optimizer import build_optimizer, wrap_data_parallel
    from efficientbench.training.trainer import Trainer

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


def test_gradients_are_those_of_the_policy() -> None:
    config = configured()
    model, rollouts = build(config), written(config)
    oracle = PlainDecoder(weights_of(model), config.model)
    counted, expected = sum(int(sampled.sum()) for _, sampled in rollouts), torch.zeros((), dtype=torch.float64)
    for (tokens, sampled), gain in zip(rollouts, advantages_of(UNLIKE), strict=True):
        logarithms = oracle(tokens[None, :-1]).log_softmax(dim=-1)[0, torch.arange(len(tokens) - 1), tokens[1:]]
        expected = expected - gain * logarithms[sampled[1:]].sum() / counted
    expected.backward()
    loss, _, targets = our_step(config, model, UNLIKE)
    assert (targets, loss) == (counted, pytest.approx(expected.item(), rel=1e-5))
    for name, found in our_gradients(model).items():
        gradient = oracle.weights[name].grad
        assert gradient is not None
        assert relative_error(found, gradient) < 1e-5, name


def test_equal_rewards_move_nothing() -> None:
    from efficientbench.reinforcement.advantages import without_signal

    config = configured()
    model = build(config)
    before = weights_of(model)
    assert without_signal(torch.tensor(ALIKE)) == QUESTIONS
    assert our_step(config, model, ALIKE)[:2] == (0, 0)
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(model).items())


def test_advantages() -> None:
    from efficientbench.reinforcement.advantages import advantages, without_signal

    # The mean of these equal numbers is not one of them in float32.
    rewards = torch.tensor([[0.1] * 3, [1.0, 0.0, 0.0]])
    assert advantages(rewards)[0].tolist() == [0, 0, 0]
    assert advantages(rewards)[1].tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert without_signal(rewards) == 1


@pytest.mark.proof
def test_gradients_are_those_of_trl(tmp_path: Path) -> None:
    """TRL's GRPOTrainer, told to leave out what our loss leaves out."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    config = configured()
    model, rollouts = build(config), written(config)
    words = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    trainer = trl.GRPOTrainer(
        same_weights(weights_of(model), config.model),
        lambda completions, **columns: [0.0] * len(completions),
        trl.GRPOConfig(
            str(tmp_path),
            per_device_train_batch_size=len(rollouts),
            num_generations=SAMPLES,
            beta=0.0,
            scale_rewards="none",
            loss_type="dapo",
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to=[],
        ),
        datasets.Dataset.from_dict({"prompt": ["a"] * len(rollouts)}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, eos_token="a", pad_token="a"),
    )
    trainer.model.eval()
    inputs = {"prompt_ids": [], "prompt_mask": [], "completion_ids": [], "completion_mask": [], "tool_mask": []}
    for row, (tokens, sampled) in enumerate(rollouts):
        prompt, completion = tokens[: PROMPTS[row // SAMPLES]], tokens[PROMPTS[row // SAMPLES] :]
        ahead, behind = max(PROMPTS) - len(prompt), LENGTH + 1 - min(PROMPTS) - len(completion)
        inputs["prompt_ids"].append(torch.nn.functional.pad(prompt, (ahead, 0)))
        inputs["prompt_mask"].append(torch.nn.functional.pad(torch.ones_like(prompt), (ahead, 0)))
        inputs["completion_ids"].append(torch.nn.functional.pad(completion, (0, behind)))
        inputs["completion_mask"].append(torch.nn.functional.pad(torch.ones_like(completion), (0, behind)))
        inputs["tool_mask"].append(torch.nn.functional.pad(sampled[-len(completion) :].long(), (0, behind)))
    counted = torch.tensor(float(sum(int(sampled.sum()) for _, sampled in rollouts)))
    given = {name: torch.stack(each) for name, each in inputs.items()}
    advantages = torch.tensor(advantages_of(UNLIKE))
    expected = trainer._compute_loss(trainer.model, {**given, "advantages": advantages, "num_items_in_batch": counted})
    expected.backward()
    our_step(config, model, UNLIKE)
    found = to_qwen2(our_gradients(model), config.model)
    for name, parameter in trainer.model.named_parameters():
        assert relative_error(found[name], parameter.grad) < 1e-5, name
