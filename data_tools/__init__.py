"""Text to tokens on disk, in Megatron's `.bin/.idx` format; free-standing, it imports nothing of the harness.

| module | what |
|---|---|
| `embedded` | English text that every Python installation carries |
| `inputs` | files, folders and globs, cut into parts |
| `documents` | documents from the parts of parquet, JSONL and text files |
| `tokenize` | files to a `.bin/.idx` pair, in parallel, restartable |
| `engine` | text to ids: tiktoken's engine, or `tokenizers` |
| `parallel`, `parts`, `merge` | the worker processes; one part's tokens on disk; parts put together |
| `verify` | is a pair whole, and what its manifest says |
| `tokenizer` | train and load byte-level BPE tokenizers |
| `tokenizer_training` | a tokenizer from files, and how well it compresses |
| `indexed` | the format of `.bin/.idx` pairs, and its check |
| `reading` | documents of a pair, one at a time |
| `statistics` | token counts of a pair |
| `inspection` | what a pair holds, for people |
| `corpus` | all of it at once, cached: source + tokenizer -> `Corpus` |
| `manifest` | `Corpus`, and its record beside the tokens |
| `hub` | a tokenizer's files from the Hugging Face hub |
| `download` | datasets from the hub: resumed, checked, several files at once |
| `prepare`, `jsonl_copy` | a dataset of the hub to tokens in one call; parquet files as JSONL |
| `files` | checksums, locks, files written beside and renamed |
"""
