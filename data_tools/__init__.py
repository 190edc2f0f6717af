"""Text to tokens on disk, in Megatron's `.bin/.idx` format; free-standing, it imports nothing of the harness.

| module | what |
|---|---|
| `embedded` | English text that every Python installation carries |
| `documents` | documents from JSONL and plain text files |
| `tokenizer` | train and load byte-level BPE tokenizers |
| `indexed` | write and check `.bin/.idx` pairs |
| `reading` | documents of a pair, one at a time |
| `statistics` | token counts of a pair |
| `inspection` | what a pair holds, for people |
| `corpus` | all of it at once, cached: source + tokenizer -> `Corpus` |
| `manifest` | `Corpus`, and its record beside the tokens |
| `hub` | files from the Hugging Face hub |
| `files` | checksums, locks, files written beside and renamed |
"""
