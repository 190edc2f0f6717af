"""Tokens per second from JSONL on disk to a Megatron pair, ours against DataTrove's and against bare tiktoken.

44 MB of web text, in which every document is made distinct, in two files; two processes on each side; whole commands
in turn, from the start of the interpreter to its end. Bare tiktoken is only its `encode_ordinary`, in two processes
which have the text in memory and the engine built. All have to give the same ids.

    python3 tests/benchmarks/tokenize_vs_datatrove.py --datatrove-python VENV/bin/python --data SHARED/data [--write]

DataTrove lives in an environment of its own: `pip install "datatrove[processing,io]"`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

if TYPE_CHECKING:
    from support.measured import Figure

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 2
SOURCES = ("c4/c4_demo.jsonl", "fineweb_edu/heuristic_split.jsonl")


def main() -> None:
    """Run all three in turn, and print each one's tokens per second and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datatrove-python", required=True, metavar="PATH")
    parser.add_argument("--data", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--text-mb", type=int, default=44)
    parser.add_argument("--write", action="store_true", help="write the figures to docs/measured for the docs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(arguments.data, folder / "text", arguments.text_mb * 1_000_000)
        tokenizer = folder / "tokenizer"
        save_tokenizer(arguments.data / "qwen2_tokenizer", tokenizer)
        times_s: dict[str, list[float]] = {"ours": [], "DataTrove": [], "tiktoken": []}
        for turn in range(arguments.rounds):
            out = folder / str(turn)
            out.mkdir()
            times_s["ours"].append(timed(*ours(folder / "text", tokenizer, out)))
            times_s["DataTrove"].append(timed(arguments.datatrove_python, __file__, *theirs(folder, tokenizer, out)))
            tokens = compare_ids(out)
            seconds, bare_tokens = bare_tiktoken(folder / "text", tokenizer)
            assert bare_tokens == tokens, (bare_tokens, tokens)
            times_s["tiktoken"].append(seconds)
            print(" ".join(f"{side} {values[-1]:.2f} s" for side, values in times_s.items()), flush=True)
        figures = report(times_s, tokens)
    if arguments.write:
        from support.measured import write_measured

        from efficientbench.devices.cpu import CPU

        conditions = f"{arguments.text_mb} MB of web text, Qwen2's tokenizer, two processes each, commands in turn"
        write_measured(__file__, CPU(), figures, conditions)


def write_text(data: Path, folder: Path, text_bytes: int) -> None:
    """The same documents again and again, each with a number of its own, in as many files as there are workers."""
    texts = [json.loads(line)["text"] for name in SOURCES for line in (data / name).open(encoding="utf-8")]
    folder.mkdir()
    size = number = 0
    for worker in range(WORKERS):
        with (folder / f"{worker}.jsonl").open("w", encoding="utf-8") as stream:
            while size < text_bytes * (worker + 1) / WORKERS:
                text = f"Document {number}. {texts[number % len(texts)]}"
                size += len(text.encode())
                number += 1
                stream.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    print(f"{number:,} documents, {size:,} bytes of text")


def save_tokenizer(source: Path, folder: Path) -> None:
    """As `tokenizer.json`, the one form that DataTrove reads from a folder."""
    from efficientbench.data_tools.tokenizer import load_tokenizer

    load_tokenizer(source).save(folder)


def ours(text: Path, tokenizer: Path, out: Path) -> list[str]:
    """The command of this project."""
    options = ["--output", str(out / "ours"), "--tokenizer", str(tokenizer), "--workers", str(WORKERS)]
    return [sys.executable, "-m", "data_tools", "tokenize", str(text), *options]


def theirs(folder: Path, tokenizer: Path, out: Path) -> list[str]:
    """Arguments with which DataTrove's interpreter runs `run_datatrove`."""
    return ["run_datatrove", str(folder / "text"), str(tokenizer / "tokenizer.json"), str(out / "theirs")]


def run_datatrove(text: str, tokenizer: str, out: str) -> None:
    """DataTrove's pipeline for the same: as many tasks as files, all at once."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import MegatronDocumentTokenizer

    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(text),
            MegatronDocumentTokenizer(out, tokenizer_name_or_path=tokenizer, eos_token="<|endoftext|>"),
        ],
        tasks=WORKERS,
        workers=WORKERS,
        logging_dir=f"{out}.log",
    ).run()


def timed(*command: str) -> float:
    """The seconds that a command takes, from start to end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    begin_s = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    elapsed_s = time.perf_counter() - begin_s
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return elapsed_s


def compare_ids(out: Path) -> int:
    """Ours equal theirs, file after file, to the last byte, and we can read theirs; gives the number of tokens."""
    from efficientbench.data_tools.verify import verify_pair

    expected = b""
    for path in sorted((out / "theirs").glob("*.bin")):
        verify_pair(path.with_suffix(""))
        expected += path.read_bytes()
    found = (out / "ours.bin").read_bytes()
    assert found == expected, f"the ids differ: {len(found):,} and {len(expected):,} bytes"
    return len(found) // 4


def bare_tiktoken(text: Path, tokenizer: Path) -> tuple[float, int]:
    """Seconds of the slowest of the processes that encode one file each, and all tokens, ends of documents included."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(WORKERS) as pool:
        found = pool.starmap(encode_file, [(path, tokenizer) for path in sorted(text.iterdir())], chunksize=1)
    return max(seconds for seconds, _ in found), sum(tokens for _, tokens in found)


def encode_file(path: Path, tokenizer: Path) -> tuple[float, int]:
    """Seconds that tiktoken itself takes for the documents of a file, and how many tokens they are."""
    from efficientbench.data_tools.engine import choose_engine
    from efficientbench.data_tools.tokenizer import load_tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts = [json.loads(line)["text"] for line in path.open(encoding="utf-8")]
    engine = choose_engine(load_tokenizer(tokenizer), tokenizer, [])
    assert engine.encoding is not None, engine.reason
    begin_s = time.perf_counter()
    tokens = sum(len(engine.encoding.encode_ordinary(text)) + 1 for text in texts)
    return time.perf_counter() - begin_s, tokens


def report(times_s: dict[str, list[float]], tokens: int) -> dict[str, Figure]:
    """Print and return median and range of each side's tokens per second, and of the ratios within each turn."""
    from support.measured import Figure

    figures = {}
    print(f"{tokens:,} tokens, the same ids on all sides; {len(times_s['ours'])} turns: median (lowest to highest)")
    for side, seconds in times_s.items():
        rates = sorted(tokens / value for value in seconds)
        print(f"{side:10} {statistics.median(rates):>12,.0f} tokens/s ({rates[0]:,.0f} to {rates[-1]:,.0f})")
        what = f"tokens per second, {side}"
        middle, ends = statistics.median(rates), (rates[0], rates[-1])
        figures[side] = Figure(what, middle, "tokens/s", ends, "range", len(rates), "turns")
    for side in ("DataTrove", "tiktoken"):
        ratios = sorted(other / our for our, other in zip(times_s["ours"], times_s[side], strict=True))
        print(f"ours / {side}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        what = f"tokens per second, ours over {side}'s"
        middle, ends = statistics.median(ratios), (ratios[0], ratios[-1])
        figures[f"ratio_{side}"] = Figure(what, middle, "", ends, "range", len(ratios), "turns")
    return figures


if __name__ == "__main__":
    if sys.argv[1:2] == ["run_datatrove"]:
        run_datatrove(*sys.argv[2:])
    else:
        main()
