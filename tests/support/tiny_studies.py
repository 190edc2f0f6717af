"""A study of models that a processor trains in seconds, and records as its runs would leave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from support.metrics_parts import make_record

from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.records.record import RunRecord
from efficientbench.sweep.tasks import TrainingTask

LAYERS = {"8k": (1, 16, 48), "16k": (1, 32, 64), "32k": (2, 40, 88), "64k": (2, 56, 128), "400k": (4, 96, 256)}
"""Size → layers, width, feed-forward width."""
TRAINING = {
    **{"dtype": "fp32", "seq_len": 32, "micro_batch_size": 16, "global_batch_size": 16},
    **{"validation_interval": 0, "validation_tokens": 512},
}


def write_study(path: Path, measured: int = 10, **words: Any) -> Path:
    """Write a matrix with tiny sizes, the shipped variants, and a study.

    measured: the fewest steps that a run measures; `words` lie over the study's section.
    """
    sizes = {
        name: {
            "model": {
                **{"layers": layers, "hidden_size": width, "heads": 2, "head_dim": width // 2},
                **{"ffn_hidden_size": wide, "vocab_size": 264},
            },
            "training": TRAINING,
            "data": {"trained_vocab_size": 264},
            "measurement": {"warmup_steps": 1, "min_steps": measured},
        }
        for name, (layers, width, wide) in LAYERS.items()
    }
    sizes["16kb"] = sizes["16k"]
    section = {
        **{"variants": ["gqa", "mla"], "baseline": "gqa", "sizes": ["8k", "16k", "32k"]},
        **{"tokens_per_parameter": [8, 16], "seeds": 1, "target": {"size": "64k", "tokens_per_parameter": 16}},
        **words,
    }
    path.write_text(yaml.safe_dump({"sizes": sizes, "variants": {}, "study": section}), encoding="utf-8")
    return path


def record_of(task: TrainingTask, loss: float | None, **values: Any) -> RunRecord:
    """Return the complete record of a run with this final validation loss."""
    assert task.config is not None
    return make_record(
        {
            **{"variant": task.config.variant, "size": task.config.size, "run": task.config.name},
            **{"seed": task.config.training.seed, "status": "completed", "formula_id": FORMULAS},
            **{"config": task.config.model_dump(mode="json"), "validation_loss": loss},
            **values,
        }
    )


def write_record(task: TrainingTask, loss: float | None, **values: Any) -> None:
    """Write such a record into the run's folder."""
    task.folder.path.mkdir(parents=True, exist_ok=True)
    record_of(task, loss, **values).write(task.folder.record)
