"""A `transformers.Trainer`, measured by a callback; `python examples/transformers_trainer.py [FOLDER]`.

It needs accelerate. FOLDER gets the record.
"""

from __future__ import annotations

import importlib.util
import sys
from tempfile import TemporaryDirectory

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments

from efficientbench.metrics import EfficiencyCallback

if importlib.util.find_spec("accelerate") is None:
    sys.exit("transformers.Trainer needs accelerate, which is not installed: pip install accelerate")
output = sys.argv[1] if len(sys.argv) > 1 else "output/own_loops/transformers_trainer"

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
        logging_steps=4,
        report_to="none",
        disable_tqdm=True,
    )
    measured = EfficiencyCallback(warmup_steps=2, output=output)
    trainer = Trainer(model, arguments, train_dataset=texts, eval_dataset=texts[:8])
    measured.attach(trainer)
    trainer.train()
print(measured.summary())
