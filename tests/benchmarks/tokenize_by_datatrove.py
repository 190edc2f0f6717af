"""DataTrove's side of tokenize_vs_datatrove.py, for an interpreter that has DataTrove and nothing of this project.

python3 tests/benchmarks/tokenize_by_datatrove.py TEXT TOKENIZER OUT WORKERS
"""

from __future__ import annotations

import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import MegatronDocumentTokenizer

if __name__ == "__main__":
    text, tokenizer, out, workers = sys.argv[1:]
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(text),
            MegatronDocumentTokenizer(out, tokenizer_name_or_path=tokenizer, eos_token="<|endoftext|>"),
        ],
        # As many tasks as files, all at once.
        tasks=int(workers),
        workers=int(workers),
        logging_dir=f"{out}.log",
    ).run()
