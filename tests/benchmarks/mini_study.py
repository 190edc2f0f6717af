"""A real study of models that two cores train, and a judge: runs at its target that are trained afterwards.

    python tests/benchmarks/mini_study.py --repetition N [--work FOLDER] [--write]
    python tests/benchmarks/mini_study.py --together

By the real commands: the embedded text, a tokenizer of it, the study, then three seeds of each variant at the target.
Runs have a thread each, as many at once as there are cores; complete runs are kept, and an interrupted call goes on.
Repetitions differ in their seeds, and each writes `docs/measured/mini_study_N.json`; `--together` judges these.

A token of `blind` sees itself alone: it must be last. `none` has no positions, and must be worse than gqa's RoPE. Of
`window`, 8 tokens, no name is asked: models this small learn local text first, and its lead must shrink with size.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.command_line import command, environment
from support.measured import MEASURED, options, write_content
from support.outside import FILES, PACKAGE

from efficientbench.devices.cpu import CPU
from efficientbench.metrics.formulas.student import t_quantile_95
from efficientbench.metrics.records.record import RECORD_NAME, read_record
from efficientbench.studies import page
from efficientbench.studies.answer import Answer
from efficientbench.studies.effects import Fit
from efficientbench.studies.ladder import Ladder, Result
from efficientbench.studies.record import ANSWER

VOCABULARY = 512
SIZES = {"40k": (2, 32, 88), "60k": (2, 40, 104), "100k": (2, 56, 152), "200k": (2, 80, 216)}
"""Size → layers, width, feed-forward width."""
RATIOS = (8, 12, 20)
"""Tokens per parameter. At 4, attention has only begun to learn: from there to 16 the losses followed no law, and what
the fit took for noise hid the difference between `none` and `blind`."""
LADDER = {"sizes": ["40k", "60k", "100k"], "tokens_per_parameter": list(RATIOS), "seeds": 3}
BATCH = 4
"""Sequences of a step. With 16, the shortest runs were of 30 to 150 steps: seeds lay up to 0.3 nats apart, no law held
from budget to budget, and the study could name nobody."""
TARGET, RATIO = "200k", 8
BASELINE, JUDGED, LOCAL = "gqa", ("mla", "none", "blind"), "window"
VARIANTS = (BASELINE, *JUDGED, LOCAL)
JUDGES = 3
SURE = 0.999
"""The probability with which `blind` must be last."""
DRAWS = 200_000
"""Draws that show it: in the verdict's 2,000, two more or less decide."""
INSIDE, OF = 8, 9
"""How many of the judged differences of three repetitions must lie in their intervals."""
CONDITIONS = (
    f"{', '.join(VARIANTS)}; {', '.join(LADDER['sizes'])} × {', '.join(map(str, RATIOS))} tokens per parameter × 3 "
    f"seeds, target {TARGET} × {RATIO}, {JUDGES} other seeds of each variant there; vocabulary {VOCABULARY}, sequences "
    f"of 128, batches of {BATCH * 128} tokens, float32, one thread a run"
)


def matrix(work: Path, seed: int) -> dict[str, Any]:
    """Return the matrix with the study's section; the ladder's seeds begin with `seed`."""
    shared = {
        "data": {
            "path": str(work / "sample.jsonl"),
            "tokenizer": str(work / "tokenizer"),
            "cache": str(work / "cache"),
        },
        "measurement": {"warmup_steps": 1, "min_steps": 4},
        "training": {
            **{"dtype": "fp32", "seq_len": 128, "micro_batch_size": BATCH, "global_batch_size": BATCH, "seed": seed},
            **{"validation_interval": 0, "validation_tokens": 65536},
        },
    }
    sizes = {
        name: {
            "model": {
                **{"layers": layers, "hidden_size": width, "heads": 2, "head_dim": width // 2},
                **{"ffn_hidden_size": wide, "vocab_size": VOCABULARY},
            },
            **shared,
        }
        for name, (layers, width, wide) in SIZES.items()
    }
    kind = f"{PACKAGE}.window:VARIANT"
    windows = {name: {"model": {"attention": {"kind": kind, "window": keys}}} for name, keys in _WINDOWS.items()}
    study = {
        **{"variants": list(VARIANTS), "baseline": BASELINE, **LADDER, "learning_rate": {"start": 0.01}},
        "target": {"size": TARGET, "tokens_per_parameter": RATIO},
    }
    return {"sizes": sizes, "variants": windows, "study": study}


_WINDOWS = {"blind": 1, LOCAL: 8}


def run(*words: str, program: str = "efficientbench.cli") -> None:
    """Run a command of the product; end this script with its exit code where it fails."""
    line = [sys.executable, "-m", program, *words] if program != "efficientbench.cli" else command(*words)
    code = subprocess.run(line, env=environment(), check=False).returncode
    if code:
        raise SystemExit(code)


def prepare(work: Path) -> None:
    """Write the plug-in, the text and its tokenizer, where they are not there yet."""
    shutil.copytree(FILES, work / "plugins" / PACKAGE, dirs_exist_ok=True)
    os.environ["PYTHONPATH"] = str(work / "plugins")
    text, tokenizer = work / "sample.jsonl", work / "tokenizer"
    if not tokenizer.is_dir():
        text.unlink(missing_ok=True)
        run("sample", "--output", str(text), program="data_tools")
        words = ("--vocab-size", str(VOCABULARY), "--output", str(tokenizer))
        run("train-tokenizer", str(text), *words, program="data_tools")


def judge(file: Path, found: Answer, seed: int) -> dict[str, list[float]]:
    """Train every variant at the target with other seeds; return variant → final losses, by seed."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    largest = max(found.runs, key=lambda each: each.cell.parameters).cell
    carried = (found.target.parameters / largest.parameters) ** (found.slope or 0.0)
    rates = {each.variant: each.learning_rate for each in found.runs if each.cell == largest and each.learning_rate}
    content["adjusted"] = {
        f"{name}_{TARGET}": {"training": {"learning_rate": float(f"{rate * carried:.3e}")}}
        for name, rate in rates.items()
    }
    content["suites"] = {"judge": [{"variants": list(VARIANTS), "sizes": [TARGET]}]}
    del content["study"]
    matrix_file, folder = file.with_name("judge.yaml"), file.parent / "judge"
    matrix_file.write_text(yaml.safe_dump(content), encoding="utf-8")
    tokens = int(found.target.tokens)
    rise = round(tokens * 0.1 * min(RATIOS) / RATIO)
    run(
        *("sweep", str(matrix_file), "--repeat", str(JUDGES), "--jobs", str(len(os.sched_getaffinity(0)))),
        *(f"output={folder}", "device=cpu", f"training.seed={seed}", f"training.tokens={tokens}"),
        *("training.lr_schedule=wsd", "training.min_learning_rate=0", f"training.lr_warmup_tokens={rise}"),
        *("match=flops", f"match_to={BASELINE}"),
    )
    losses: dict[str, list[float]] = {}
    for name, index in itertools.product(VARIANTS, range(JUDGES)):
        record = read_record(folder / f"{name}_{TARGET}" / f"seed_{seed + index}" / RECORD_NAME)
        assert record.validation_loss is not None, record.unavailable
        losses.setdefault(name, []).append(record.validation_loss)
    return losses


def last(found: Answer) -> dict[str, float]:
    """Return variant → the probability that its loss at the target is the highest, by the verdict's fit."""
    results = [Result(each.variant, each.cell, each.seed, each.loss or float("nan")) for each in found.runs]
    ladder = Ladder.of(results, found.section.ordered, found.section.trunks)
    assert found.findings is not None, found.no_verdict
    effects = Fit(ladder, found.findings.prior).draw(ladder.losses, DRAWS)
    drawn = effects.at(found.target.parameters, found.target.tokens)
    worst = drawn.argmax(axis=1)
    return {name: float((worst == place).mean()) for place, name in enumerate(ladder.variants)}


def times(found: Answer) -> dict[str, dict[str, float]]:
    """Return variant → its time of training over the baseline's, with its 95 % interval by the noise of all runs."""
    logs = {name: np.log(cost.rates) for name, cost in found.costs.items()}
    degrees = sum(len(each) - 1 for each in logs.values())
    variance = sum(((each - each.mean()) ** 2).sum() for each in logs.values()) / degrees
    seconds = {name: cost.device_seconds or float("nan") for name, cost in found.costs.items()}
    told = {}
    for name, each in logs.items():
        margin = t_quantile_95(degrees) * math.sqrt(variance * (1 / len(each) + 1 / len(logs[BASELINE])))
        ratio = seconds[name] / seconds[BASELINE]
        told[name] = {"time": ratio, "time_low": ratio / math.exp(margin), "time_high": ratio * math.exp(margin)}
    return told


def measured(found: Answer, losses: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Return a row for each variant but the baseline: the study's difference, and the judge's."""
    assert found.findings is not None, found.no_verdict
    lasts, took_over, rows = last(found), times(found), []
    for each in found.findings.verdict.standings:
        if each.difference is None:
            continue
        own = [one - base for one, base in zip(losses[each.variant], losses[BASELINE], strict=True)]
        told = sum(own) / len(own)
        trend = next(trend for trend in found.findings.trends if trend.variant == each.variant)
        row = {"variant": each.variant, "predicted": each.difference.mean, "low": each.difference.low}
        row |= {
            "high": each.difference.high,
            "judged": told,
            "judged_by_seed": own,
            "inside": each.difference.low <= told <= each.difference.high,
        }
        row |= took_over[each.variant]
        rows.append({**row, "best": each.best, "last": lasts[each.variant], "by_size": trend.by_size, "way": trend.way})
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the rows in words, for the page: differences from the baseline in nats."""
    return [
        {
            "variant": row["variant"],
            "by size": ", ".join(f"{each:+.3f}" for each in row["by_size"].values()),
            "at the target, by the ladder": f"{row['predicted']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})",
            "trained there": f"{row['judged']:+.3f}",
            "inside": "yes" if row["inside"] else "no",
            "P(best)": f"{row['best']:.3f}",
            "P(last)": f"{row['last']:.3f}",
        }
        for row in rows
    ]


def took(folder: Path) -> str:
    """Return how long the runs of a repetition took, its searches and its judge included, each on one core."""
    seconds = [read_record(path).wall_s for path in folder.rglob(RECORD_NAME)]
    return f"{len(seconds)} runs took {sum(each or 0.0 for each in seconds) / 3600:.2f} hours of one core."


def failures(repetitions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what was asked of these repetitions and does not hold; the intervals are counted over three."""
    found, named, inside = [], set(), 0
    for each in repetitions:
        rows = {row["variant"]: row for row in each["rows"]}
        named |= {each["named"]} - {None}
        inside += sum(rows[name]["inside"] for name in JUDGED)
        where = f"repetition {each['repetition']}"
        if rows["blind"]["last"] < SURE:
            found.append(f"{where}: blind is last with {rows['blind']['last']:.4f}, and {SURE} is asked")
        if rows["none"]["low"] <= 0:
            found.append(f"{where}: none is not surely worse than {BASELINE}: from {rows['none']['low']:+.3f}")
    if len(named) > 1:
        found.append(f"verdicts contradict each other: {', '.join(sorted(named))}")
    for name in VARIANTS[1:]:
        own = [row for each in repetitions for row in each["rows"] if row["variant"] == name]
        if any(row["low"] > 0 for row in own) and any(row["high"] < 0 for row in own):
            found.append(f"{name} is surely worse than {BASELINE} in one repetition, and surely better in another")
    if len(repetitions) * len(JUDGED) == OF and inside < INSIDE:
        found.append(f"{inside} of {OF} judged differences lie in their intervals, and {INSIDE} are asked")
    return found


def repetition(number: int, folder: Path) -> dict[str, Any]:
    """Train what a repetition lacks, and return what it found."""
    work = folder.absolute()
    own = work / str(number)
    own.mkdir(parents=True, exist_ok=True)
    prepare(work)
    file, seed = own / "mini.yaml", 1000 * number
    file.write_text(yaml.safe_dump(matrix(work, seed)), encoding="utf-8")
    run("study", str(file), f"output={own / 'study'}", "device=cpu")
    found = ANSWER.validate_json((own / "study" / "study.json").read_bytes())
    rows = measured(found, judge(file, found, seed + 100))
    told = page.verdict(found)
    assert found.findings is not None
    assert told.table is not None
    return {
        **{"repetition": number, "named": found.findings.named, "slope": found.slope, "cautions": list(found.cautions)},
        **{"answer": list(told.lines), "notes": list(told.table.notes), "took": [took(own)]},
        "quote": [page.quote(found, found.findings)],
        **{"standings": [dict(zip(told.table.header, row, strict=True)) for row in told.table.rows]},
        **{"rows": rows, "table": table(rows)},
    }


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--repetition", type=int, help="its number, 1 to 3, from which its seeds follow")
    parser.add_argument(
        "--together", action="store_true", help="judge the repetitions that are written, and train nothing"
    )
    parser.add_argument("--work", type=Path, default=Path("output/mini_study"), help="folder of the runs; kept")
    arguments: argparse.Namespace = parser.parse_args()
    if arguments.together == (arguments.repetition is not None):
        parser.error("give --repetition N or --together")
    if arguments.together:
        told = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(MEASURED.glob("mini_study_*.json"))]
    else:
        told = [repetition(arguments.repetition, arguments.work)]
        if arguments.write:
            write_content(__file__, CPU(), {"conditions": CONDITIONS, **told[0]}, f"mini_study_{arguments.repetition}")
    for each in told:
        print(f"repetition {each['repetition']}: named {each['named']}", *each["rows"], *each["cautions"], sep="\n")
    wrong = failures(told)
    print(*(wrong or [f"all that is asked of {len(told)} repetitions holds"]), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
