"""Whether a chat model learns from its base: SFT after base and mid-training beside the same SFT from random weights.

    python tests/benchmarks/chat_stages.py --gsm8k train.jsonl --text TEXT [--seeds N] [--work FOLDER] [--write]

For each seed four runs of experiments/chat.yaml with --smoke: base on the text, mid on rows of GSM8K, SFT on other rows
of it, and that SFT again from random weights. Both are scored on the same held-out rows, on supervised tokens alone.
Differences are paired by seed. In the work folder, complete runs are kept: a call after an interruption goes on.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.chat_stages import Amounts, Held, Stages
from support.measured import Figure, options, report

from efficientbench.metrics.formulas.student import mean_confidence_interval

AMOUNTS = Amounts(base_steps=200, mid_rows=1500, sft_rows=1500, validation_tokens=10_000)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--gsm8k", type=Path, required=True, help="rows of GSM8K's training split, JSONL")
    parser.add_argument("--text", type=Path, required=True, help="text that the base learns")
    parser.add_argument("--seeds", type=int, default=3, help="how many pairs, 2 or more")
    parser.add_argument("--work", type=Path, default=Path("output/chat_stages"), help="where everything goes")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    stages = Stages(arguments.work.absolute(), arguments.gsm8k.absolute(), arguments.text.absolute(), AMOUNTS)
    pairs: list[Held] = []
    for seed in range(1, arguments.seeds + 1):
        pairs.append(stages.held_out(seed))
        print(f"seed {seed}: {pairs[-1]}", flush=True)
    gains = [pair.from_random - pair.from_base for pair in pairs]
    means = {name: statistics.mean(getattr(pair, name) for pair in pairs) for name in ("from_base", "from_random")}
    count, each = len(pairs), "paired seeds"
    figures = {
        "from_base": Figure("held-out loss of SFT after base and mid", means["from_base"], "nats", n=count, n_of=each),
        "from_random": Figure("of the same SFT from random weights", means["from_random"], "nats", n=count, n_of=each),
        "gain": Figure("lower by", statistics.mean(gains), "nats", mean_confidence_interval(gains), n=count, n_of=each),
    }
    conditions = (
        f"the smoke shapes of d8 (4 layers of width 64, 1,024 tokens); base: {AMOUNTS.base_steps} steps of web text; "
        f"mid: {AMOUNTS.mid_rows:,} rows of GSM8K; SFT: {AMOUNTS.sft_rows:,} further rows, of which a tenth is held "
        "out, one epoch; loss per supervised token; differences paired by seed, Student's t"
    )
    report(__file__, arguments, figures, conditions)


if __name__ == "__main__":
    main()
