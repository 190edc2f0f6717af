"""Exported folders whose tokenizer has chat tokens: their template gives the ids and the mask that were trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from oracles.oracle import build, weights_of
from support.chat_tokenizers import behind_qwen2s_split, of_qwen, of_words
from support.configs import tiny

from efficientbench.data_tools.chat.conversations import read_messages
from efficientbench.data_tools.chat.render import make_renderer
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from efficientbench.export.hugging_face import Model, write_model

CALLS = [
    {"type": "text", "text": "Half of 48 is "},
    {"type": "python", "text": "48/2"},
    {"type": "python_output", "text": "24"},
    {"type": "text", "text": "24."},
]
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind, naïve and short."},
    {"role": "user", "content": "How much is half of 48?"},
    {"role": "assistant", "content": CALLS},
    {"role": "user", "content": "And 12345678?\n"},
    {"role": "assistant", "content": "6172839, I'd say."},
]


def tokenizer_of(style: str, split: str, folder: Path) -> TextTokenizer:
    """A tokenizer of one style, behind its own split or Qwen2's."""
    (of_qwen if style == "qwen" else of_words)(folder, [json.dumps(MESSAGES), Path(__file__).read_text()])
    if split == "qwen2":
        behind_qwen2s_split(folder)
    return load_tokenizer(folder)


# Run, style, split, model type: beside Qwen2's configuration, AutoTokenizer reads a tokenizer in a way of its own.
CASES = [
    ("gqa_1.5B", "nanochat", "own", "llama"),
    ("gqa_1.5B", "nanochat", "qwen2", "qwen2"),
    ("gqa_1.5B", "qwen", "qwen2", "qwen2"),
    ("mla_1.5B", "nanochat", "own", "deepseek_v2"),
]


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize(("run", "style", "split", "model_type"), CASES)
def test_the_template_gives_the_ids_and_the_mask_of_training(
    run: str, style: str, split: str, model_type: str, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    ours = tokenizer_of(style, split, tmp_path / "tokenizer")
    config = tiny(run, f"model.vocab_size={ours.vocab_size}")
    folder = tmp_path / "model"
    folder.mkdir()
    assert write_model(Model(config, weights_of(build(config)), ours), folder) == []
    assert json.loads((folder / "config.json").read_text())["model_type"] == model_type
    rendered = make_renderer(ours, style).conversation(read_messages(MESSAGES))
    loaded = AutoTokenizer.from_pretrained(folder)
    found = loaded.apply_chat_template(MESSAGES, return_dict=True, return_assistant_tokens_mask=True)
    assert found["input_ids"] == rendered.ids.tolist()
    assert found["assistant_masks"] == rendered.mask.tolist()
    prompt = loaded.apply_chat_template(MESSAGES[:-1], return_dict=True, add_generation_prompt=True)["input_ids"]
    assert prompt == make_renderer(ours, style).prompt(read_messages(MESSAGES)).tolist()
