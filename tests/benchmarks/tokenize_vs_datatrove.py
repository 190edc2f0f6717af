"""Tokens per second from JSONL on disk to a Megatron pair, ours against DataTrove's and against bare tiktoken.

44 MB of web text, in which every document is made distinct, in two files; two processes on each side; whole commands
in turn, from the start of the interpreter to its end. Bare tiktoken is only its `encode_ordinary`, in two processes
which have the text in memory and the engine built. All have to give the same ids.

    python3 tests/benchmarks/tokenize_vs_datatrove.py --datatrove-python VENV/bin/python --data SHARED/data [--write]

DataTrove lives in an environment of its own: `pip install "datatrove[processing,io]"`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import Figure, options, report, seconds
from support.repository import ROOT

from efficientbench.data_tools.tokenizer.engine import choose_engine
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer
from efficientbench.data_tools.tokens.inspection import verify_pair

WORKERS = 2
DATATROVE = Path(__file__).with_name("tokenize_by_datatrove.py")
SOURCES = ("c4/c4_demo.jsonl", "fineweb_edu/heuristic_split.jsonl")


def main() -> None:
    """Run all three in turn, and print each one's tokens per second and the ratios."""
    parser = options(__doc__)
    parser.add_argument("--datatrove-python", required=True, metavar="PATH")
    parser.add_argument("--data", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--text-mb", type=int, default=44)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(arguments.data, folder / "text", arguments.text_mb * 1_000_000)
        tokenizer = folder / "tokenizer"
        # As `tokenizer.json`, the one form that DataTrove reads from a folder.
        load_tokenizer(arguments.data / "qwen2_tokenizer").save(tokenizer)
        times_s: dict[str, list[float]] = {"ours": [], "DataTrove": [], "tiktoken": []}
        for turn in range(arguments.rounds):
            out = folder / str(turn)
            out.mkdir()
            times_s["ours"].append(timed(*ours(folder / "text", tokenizer, out)))
            theirs = [folder / "text", tokenizer / "tokenizer.json", out / "theirs", WORKERS]
            times_s["DataTrove"].append(timed(arguments.datatrove_python, DATATROVE, *theirs))
            tokens = compare_ids(out)
            bare_s, bare_tokens = bare_tiktoken(folder / "text", tokenizer)
            assert bare_tokens == tokens, (bare_tokens, tokens)
            times_s["tiktoken"].append(bare_s)
            print(" ".join(f"{side} {values[-1]:.2f} s" for side, values in times_s.items()), flush=True)
    figures = compare(times_s, tokens)
    conditions = f"{arguments.text_mb} MB of web text, Qwen2's tokenizer, two processes each, commands in turn"
    report(__file__, arguments, figures, conditions)


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


def ours(text: Path, tokenizer: Path, out: Path) -> list[object]:
    """Return this project's command."""
    options = ["--output", out / "ours", "--tokenizer", tokenizer, "--workers", WORKERS]
    return [sys.executable, "-m", "efficientbench.data_tools", "tokenize", text, *options]


def timed(*command: object) -> float:
    """Return the seconds that a command takes, from start to end."""

    def run() -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*map(str, command)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stdout + done.stderr)

    return seconds(run)


def compare_ids(out: Path) -> int:
    """Check that ours equal theirs, file after file, to the last byte, and that we read theirs; return the tokens."""
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
    """Return the seconds that tiktoken itself takes for the documents of a file, and how many tokens they are."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts = [json.loads(line)["text"] for line in path.open(encoding="utf-8")]
    engine = choose_engine(load_tokenizer(tokenizer), tokenizer, [])
    assert engine.encoding is not None, engine.reason
    begin_s = time.perf_counter()
    tokens = sum(len(engine.encoding.encode_ordinary(text)) + 1 for text in texts)
    return time.perf_counter() - begin_s, tokens


def compare(times_s: dict[str, list[float]], tokens: int) -> dict[str, Figure]:
    """Return each side's tokens per second, and their ratios within each turn."""
    rates = {side: [tokens / time_s for time_s in each] for side, each in times_s.items()}
    figures = {
        side: Figure.with_range(f"tokens per second, {side}", each, "tokens/s", "turns") for side, each in rates.items()
    }
    for side in ("DataTrove", "tiktoken"):
        ratios = [our / other for our, other in zip(rates["ours"], rates[side], strict=True)]
        what = f"tokens per second, ours over {side}'s"
        figures[f"ratio_{side}"] = Figure.with_range(what, ratios, n_of="turns")
    return figures


if __name__ == "__main__":
    main()
