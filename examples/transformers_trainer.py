"""A `transformers.Trainer`, measured by a callback. Needs accelerate; `python examples/transformers_trainer.py`."""

from __future__ import annotations

from tempfile import TemporaryDirectory

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments

from efficientbench.metrics import EfficiencyCallback

torch.manual_seed(0)
model = Qwen2ForCausalLM(
    Qwen2Config(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
)
texts = [{"input_ids": text, "labels": text} for text in torch.randint(256, (64, 32))]

with TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=12,
        per_device_train_batch_size=4,
        include_num_input_tokens_seen="all",
        eval_strategy="steps",
        eval_steps=6,
        report_to="none",
        disable_tqdm=True,
    )
    measured = EfficiencyCallback(warmup_steps=2)
    Trainer(model, arguments, train_dataset=texts, eval_dataset=texts[:8], callbacks=[measured]).train()
print(measured.summary())
