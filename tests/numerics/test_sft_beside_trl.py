"""One batch of SFT beside TRL's SFTTrainer on the exported model: ids, supervised tokens, loss and all gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from oracles.oracle import build, relative_error, weights_of
from support.configs import tiny
from support.conversation_pairs import VOCABULARY, write_rows

from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.chat.conversations import read_messages
from efficientbench.data_tools.chat.render import make_renderer
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.splitting import SPLITS, split_documents

pytestmark = pytest.mark.proof
BATCH, SEQ_LEN, RELATIVE = 8, 80, 1e-5


def conversation(number: int) -> list[dict[str, Any]]:
    """Of one or two turns, some after a system message: more than half of a sequence, so that none holds two."""
    system = [{"role": "system", "content": "Be brief!"}] if number % 3 == 0 else []
    first = [{"role": "user", "content": f"{number}{'?' * (20 - number)}"}, {"role": "assistant", "content": "naïve"}]
    second = [{"role": "user", "content": "and\n"}, {"role": "assistant", "content": "." * (25 + number)}]
    return [*system, *first, *second]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("pair"), [conversation(number) for number in range(BATCH + 1)])


def first_step(config: RunConfig, pair: Path, exported: Path) -> tuple[float, int, dict[str, torch.Tensor]]:
    """Export the weights of a model, then take a step: its loss, its supervised tokens, its gradients as exported."""
    from efficientbench.export.hugging_face import Model, write_model
    from efficientbench.export.tensors import exported as converted
    from efficientbench.model.initial_weights import global_parameters
    from efficientbench.training.data.batches import Batches
    from efficientbench.training.data.sample_index import Vocabulary
    from efficientbench.training.events import Event, StepEnded
    from efficientbench.training.trainer import Trainer
    from efficientbench.training.update.optimizer import build_optimizer, wrap_data_parallel

    stage = build(config)
    model = Model(config, weights_of(stage), load_tokenizer(pair.parent / "bpe"))
    exported.mkdir()
    write_model(model, exported)
    wrapped = wrap_data_parallel(stage, config)
    optimizer, ended = build_optimizer([wrapped], config), list[StepEnded]()
    gradients: dict[str, torch.Tensor] = {}
    prepare = optimizer.prepare_grads

    def keep_gradients() -> object:
        for name, parameter in global_parameters(stage).items():
            gradients[name] = parameter.main_grad.clone()
        return prepare()

    optimizer.prepare_grads = keep_gradients

    def listen(event: Event) -> None:
        if isinstance(event, StepEnded):
            ended.append(event)

    batches = Batches(config, 1, [pair], Vocabulary(VOCABULARY, 0, {"name": "tiny"}), torch.device("cpu"))
    Trainer(config, 1, [wrapped], optimizer, batches, [listen]).train_step(1)
    return ended[0].loss, ended[0].supervised_tokens, dict(converted(gradients, config.model, model.architecture))


def trl_step(exported: Path, rows: list[dict[str, Any]], folder: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """TRL's trainer after one step, and the gradients of it."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    gradients: dict[str, torch.Tensor] = {}

    class Keep(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
            gradients.update({name: each.grad.clone() for name, each in model.named_parameters()})

    settings = SFTConfig(
        output_dir=str(folder),
        assistant_only_loss=True,
        max_length=None,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=BATCH // 2,
        max_steps=1,
        max_grad_norm=0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(exported)
    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    data = Dataset.from_list(rows)
    trainer = SFTTrainer(model, settings, train_dataset=data, processing_class=tokenizer, callbacks=[Keep()])
    trainer.train()
    return trainer, gradients


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("name", ["gqa_1.5B", "mla_1.5B"])
def test_loss_gradients_and_counts_match_trl(name: str, pair: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="TRL needs Python 3.11")
    split = (BATCH, 1, 0)
    config = tiny(
        name,
        *("training.objective=sft", f"training.seq_len={SEQ_LEN}", f"model.vocab_size={VOCABULARY}"),
        *(f"data.path={pair}", f"data.cache={pair.parent}", f"data.split={list(split)}"),
        "model.embedding_multiplier=1",
    )
    loss, supervised, gradients = first_step(config, pair, tmp_path / "exported")
    numbers = split_documents([pair], split, VOCABULARY, pair.parent / SPLITS)[0].training.tolist()
    ours = sorted(IndexedDocuments(pair)[number].tolist() for number in numbers)
    # Rows of the padded batch, one conversation each.
    assert all(SEQ_LEN / 2 < len(ids) <= SEQ_LEN + 1 for ids in ours)
    renderer = make_renderer(load_tokenizer(pair.parent / "bpe"), "nanochat")
    conversations = [conversation(number) for number in range(BATCH + 1)]
    trained = [each for each in conversations if renderer.conversation(read_messages(each)).ids.tolist() in ours]
    trainer, expected = trl_step(tmp_path / "exported", [{"messages": each} for each in trained], tmp_path / "trl")
    theirs = list(trainer.train_dataset)
    assert sorted(row["input_ids"] for row in theirs) == ours
    assert supervised == sum(label != -100 for row in theirs for label in row["labels"])
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss, rel=RELATIVE)
    assert expected.keys() == gradients.keys()
    for key, gradient in expected.items():
        if key.endswith("o_proj.bias"):
            # Llama's class has it where keys have a bias; ours has none, and the export zeros.
            assert name == "gqa_1.5B"
            continue
        assert relative_error(gradients[key], gradient) < RELATIVE, key
