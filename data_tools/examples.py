"""The command lines at the end of each command's help."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": ("tokenize mine.jsonl --output tokens/mine --tokenizer my_tokenizer", "inspect tokens/mine", "tokenize --help"),
    "tokenize": ("tokenize data/*.parquet more.jsonl.gz --output tokens/web --tokenizer Qwen/Qwen2.5-0.5B",),
    "download": ("download --num-files 2", "download openai/gsm8k --config main"),
    "prepare": ("prepare --num-files 2", "prepare modelscope:OWNER/NAME --tokenizer my_tokenizer"),
    "chat": ("chat mixture.yaml --tokenizer my_tokenizer --output tokens/chat",),
    "inspect": ("inspect tokens/web --documents 5",),
    "train-tokenizer": ("train-tokenizer data/ --vocab-size 65536 --output my_tokenizer",),
    "verify": ("verify tokens/web",),
}
"""Command, or "" for the program itself → command lines after the program's name."""
