"""The stages of a chat model on rows of GSM8K, by the runs of experiments/chat.yaml, beside SFT from random weights."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

from support import data_tools_command
from support.command_line import efficientbench, record


@dataclass(frozen=True)
class Amounts:
    """How much the stages learn from."""

    base_steps: int
    mid_rows: int
    sft_rows: int
    validation_tokens: int
    """Supervised tokens of held-out rows that an SFT scores."""


@dataclass(frozen=True)
class Held:
    """Losses over the supervised tokens of the same held-out rows, nats per token, after the same SFT."""

    from_base: float
    from_random: float


class Stages:
    """Tokenizer and tokens that all seeds share, and the runs of each."""

    def __init__(self, folder: Path, gsm8k: Path, text: Path, amounts: Amounts) -> None:
        """Make tokenizer and tokens in `folder`; what is complete there is left.

        Args:
            folder: of these stages alone.
            gsm8k: rows of GSM8K, JSONL: the first for mid-training, those behind them for SFT.
            text: that the base learns.
            amounts: of each.
        """
        self.folder, self.amounts = folder, amounts
        first, end = amounts.mid_rows, amounts.mid_rows + amounts.sft_rows
        words = folder / "words.txt"
        with gsm8k.open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in itertools.islice(lines, first)]
        words.write_text(
            "\n".join([text.read_text(encoding="utf-8"), *(f"{r['question']}\n{r['answer']}" for r in rows)])
        )
        if not (folder / "tokenizer").exists():
            self._data("train-tokenizer", words, "--vocab-size", 1024, "--chat", "--output", folder / "tokenizer")
        self._data("tokenize", text, "--tokenizer", folder / "tokenizer", "--output", folder / "base")
        for stage, start, stop in (("mid", 0, first), ("sft", first, end)):
            mixture = folder / f"{stage}.yaml"
            mixture.write_text(f"tasks: [{{task: gsm8k, path: {gsm8k}, start: {start}, stop: {stop}}}]")
            self._data("chat", mixture, "--tokenizer", folder / "tokenizer", "--output", folder / stage)

    def held_out(self, seed: int) -> Held:
        """Train base → mid → SFT and the same SFT from random weights, with weights and order of this seed."""
        base = self.run("base", seed, f"training.steps={self.amounts.base_steps}")
        mid = self.run("mid", seed, f"init.run={base}")
        chat = self.run("sft", seed, f"init.run={mid}")
        alone = self.run("sft", seed, label="random")
        return Held(*(float(record(folder)["validation_loss"]) for folder in (chat, alone)))

    def run(self, stage: str, seed: int, *overrides: str, label: str | None = None) -> Path:
        """Train a stage of depth 8 with --smoke, unless that run is complete; its folder."""
        output, folder = self.folder / "runs", self.run_folder(stage, seed, label)
        split = () if stage == "base" else ("data.split=[9,1,0]",)
        named = () if label is None else (f"label={label}",)
        words = (
            f"training.seed={seed}",
            f"training.validation_tokens={self.amounts.validation_tokens}",
            *split,
            *named,
        )
        places = (f"output={output}", f"data.cache={self.folder / 'cache'}", f"data.path={self.folder / stage}")
        run = ("run", f"{stage}_d8", "--smoke", "--repeat", "1")
        efficientbench(*run, *words, *places, *overrides, limit_s=1200, expect=0)
        return folder

    def run_folder(self, stage: str, seed: int, label: str | None = None) -> Path:
        """The folder of a run."""
        return self.folder / "runs" / "__".join(filter(None, (f"{stage}_d8_smoke", label))) / f"seed_{seed}"

    @staticmethod
    def _data(*words: object) -> None:
        status, _, error = data_tools_command.run(*words)
        assert status == 0, error
