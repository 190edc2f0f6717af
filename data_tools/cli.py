"""The command line. Commands import what they need only when called, so that `--help` and usage errors are fast."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from efficientbench.basics.counted import number_of
from efficientbench.basics.encoding import use_utf8
from efficientbench.basics.errors import DataError
from efficientbench.basics.language import in_users_language
from efficientbench.basics.plugins import installed
from efficientbench.basics.program import command_that_names, run_program
from efficientbench.basics.readers import outlive_readers
from efficientbench.data_tools.chat.find_task import ENTRY_POINTS, TASKS
from efficientbench.data_tools.tokenizing.parallel import CORES

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": ("tokenize mine.jsonl --output tokens/mine --tokenizer my_tokenizer", "inspect tokens/mine", "tokenize --help"),
    "tokenize": ("tokenize data/*.parquet more.jsonl.gz --output tokens/web --tokenizer Qwen/Qwen2.5-0.5B",),
    "download": ("download --num-files 2", "download openai/gsm8k --config main"),
    "prepare": ("prepare --num-files 2", "prepare modelscope:OWNER/NAME --tokenizer my_tokenizer"),
    "chat": ("chat mixture.yaml --tokenizer my_tokenizer --output tokens/chat",),
    "inspect": ("inspect tokens/web --documents 5",),
    "train-tokenizer": ("train-tokenizer data/ --vocab-size 65536 --output my_tokenizer",),
    "sample": ("sample --output sample.jsonl",),
    "verify": ("verify tokens/web",),
}
"""Example command lines, without the program's name, by command ("" for the program itself)."""


app = typer.Typer(
    name="efficientbench-data",
    help="From a corpus on the hub, or in files, to tokens on disk in Megatron's .bin/.idx format.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Prefix = Annotated[
    Path, typer.Argument(metavar="PREFIX", help="path of a .bin/.idx pair without its suffix, or one of the two files")
]

QWEN = "Qwen/Qwen2.5-0.5B"
Tokenizer = Annotated[str, typer.Option(help="folder, name on the Hugging Face hub, or modelscope:OWNER/NAME")]
TextKey = Annotated[str, typer.Option(help="the text's key in JSONL, its column in parquet")]
Workers = Annotated[int, typer.Option(min=1, help="processes; all processors by default")]
MaxRejects = Annotated[float, typer.Option(min=0, max=1, help="fraction of all documents that may be unusable")]
MaxDocument = Annotated[int, typer.Option(min=1, help="MB of a document; a larger one is unusable")]

FINEWEB_EDU = "HuggingFaceFW/fineweb-edu"
Repository = Annotated[
    str, typer.Argument(metavar="DATASET", help="OWNER/NAME on the Hugging Face hub; or modelscope:OWNER/NAME")
]
Config = Annotated[
    str | None,
    typer.Option("--config", help="configuration of the dataset; FineWeb-Edu: sample-10BT, else all its documents"),
]
Revision = Annotated[
    str | None, typer.Option("--revision", help="branch, tag or commit; FineWeb-Edu: v1.2.0, else main")
]
NumFiles = Annotated[int, typer.Option("--num-files", help="at most so many files, the first by path")]
MaxWorkers = Annotated[int, typer.Option("--max-workers", help="files at once")]
DataFolder = Annotated[
    Path | None, typer.Option("--output", metavar="FOLDER", help="where the files go; data/NAME without it")
]


@app.command()
def tokenize(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="files, folders and globs of parquet, JSONL and text; text is cut at empty lines, after 4,096 "
            "characters or more",
        ),
    ],
    output: Annotated[Path, typer.Option(metavar="PREFIX", help="the .bin/.idx pair, without suffix")],
    tokenizer: Tokenizer = QWEN,
    text_key: TextKey = "text",
    workers: Workers = CORES,
    max_rejects: MaxRejects = 0.01,
    max_document_mb: MaxDocument = 64,
) -> None:
    """Turn text into tokens on disk; after an interruption, the same command continues."""
    from efficientbench.data_tools.tokenizing.tokenize import tokenize_files
    from efficientbench.data_tools.tokens.manifest import summary

    with _interruption_explained():
        corpus = tokenize_files(
            inputs,
            output,
            tokenizer,
            text_key=text_key,
            workers=workers,
            max_rejects=max_rejects,
            max_document_mb=max_document_mb,
            on_part=_show_parts,
        )
    print(summary(corpus))


@app.command()
def download(
    repository: Repository = FINEWEB_EDU,
    config: Config = None,
    revision: Revision = None,
    num_files: NumFiles = 200,
    max_workers: MaxWorkers = 3,
    output: DataFolder = None,
) -> None:
    """Download a dataset from the hub; finished files are kept, and interrupted ones continued."""
    from efficientbench.data_tools.download import DownloadRequest, download_dataset

    folder = output or _data_folder(repository)
    with _interruption_explained():
        files = download_dataset(DownloadRequest(repository, folder, config, revision, num_files, max_workers))
    size_gb = sum(file.stat().st_size for file in files) / 1e9
    print(f"{number_of(len(files), 'file')} of {repository}, {size_gb:,.2f} GB, in {folder}")


@app.command()
def prepare(
    repository: Repository = FINEWEB_EDU,
    config: Config = None,
    revision: Revision = None,
    num_files: NumFiles = 200,
    max_workers: MaxWorkers = 3,
    output: DataFolder = None,
    prefix: Annotated[
        Path | None,
        typer.Option("--prefix", metavar="PREFIX", help="the .bin/.idx pair; data/NAME-tokens/CONFIG without it"),
    ] = None,
    tokenizer: Tokenizer = QWEN,
    text_key: TextKey = "text",
    workers: Workers = CORES,
    max_rejects: MaxRejects = 0.01,
    max_document_mb: MaxDocument = 64,
    to_jsonl: Annotated[bool, typer.Option("--to-jsonl", help="keep a JSONL copy too, in FOLDER-jsonl")] = False,
) -> None:
    """Download a dataset, tokenize it and show its statistics; after an interruption, the same command continues."""
    from efficientbench.data_tools.download import DownloadRequest
    from efficientbench.data_tools.download.listing import default_config
    from efficientbench.data_tools.tokenizing.prepare import prepare_dataset
    from efficientbench.data_tools.tokenizing.tokenize import tokenize_files
    from efficientbench.data_tools.tokens.inspection import describe_pair, tokenizer_of
    from efficientbench.data_tools.tokens.manifest import summary

    folder = output or _data_folder(repository)
    prefix = prefix or Path(f"{_data_folder(repository)}-tokens") / (config or default_config(repository) or "all")
    tokenized = partial(
        tokenize_files,
        prefix=prefix,
        tokenizer=tokenizer,
        text_key=text_key,
        workers=workers,
        max_rejects=max_rejects,
        max_document_mb=max_document_mb,
        on_part=_show_parts,
    )
    with _interruption_explained():
        request = DownloadRequest(repository, folder, config, revision, num_files, max_workers)
        jsonl_folder = folder.absolute().with_name(f"{folder.absolute().name}-jsonl") if to_jsonl else None
        print(summary(prepare_dataset(request, tokenized, jsonl_folder)))
        for line in describe_pair(prefix, tokenizer_of(prefix, None), documents=0):
            print(line)


@app.command(cls=command_that_names("Tasks:", lambda: (*TASKS, *installed(ENTRY_POINTS), "package.module:Class")))
def chat(
    mixture: Annotated[Path, typer.Argument(metavar="MIXTURE", help="YAML file that names tasks and their shares")],
    output: Annotated[Path, typer.Option(metavar="PREFIX", help="the .bin/.idx pair, without suffix")],
    tokenizer: Tokenizer = QWEN,
    workers: Workers = CORES,
) -> None:
    """Turn conversations into tokens and a mask on disk; after an interruption, the same command continues."""
    from efficientbench.data_tools.chat.build import build_conversations
    from efficientbench.data_tools.chat.record import ConversationRecord, describe_conversations
    from efficientbench.data_tools.tokens.manifest import load_record

    with _interruption_explained():
        corpus = build_conversations(mixture, output, tokenizer, workers=workers, on_part=_show_parts)
    record = load_record(corpus.manifest, ConversationRecord)
    assert record is not None
    for line in describe_conversations(corpus, record):
        print(line)


@app.command()
def inspect(
    prefix: Prefix,
    documents: Annotated[int, typer.Option("--documents", min=0, help="how many documents to show as text")] = 3,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="folder or name; by default the one that made the pair")
    ] = None,
) -> None:
    """Describe a .bin/.idx pair: figures, lengths of its documents, the first of them as text.

    Of conversations, what is to be learned is green; where there are no colours, it stands in ⟦ ⟧.
    """
    from efficientbench.data_tools.tokens.inspection import describe_pair, tokenizer_of

    prefix = _without_suffix(prefix)
    for line in describe_pair(prefix, tokenizer_of(prefix, tokenizer), documents, coloured=sys.stdout.isatty()):
        print(line)


@app.command("train-tokenizer")
def train_tokenizer(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT...", help="parquet, JSONL, text")],
    output: Annotated[Path, typer.Option("--output", metavar="FOLDER", help="what AutoTokenizer will load")],
    vocab_size: Annotated[int, typer.Option("--vocab-size", help="tokens, the end of a document included")] = 65536,
    compare: Annotated[
        list[str] | None,
        typer.Option("--compare", metavar="FOLDER_OR_NAME", help="a tokenizer to compare with; may be given again"),
    ] = None,
    text_key: Annotated[str, typer.Option("--text-key", help="the key or column of the text")] = "text",
    chat: Annotated[bool, typer.Option("--chat", help="reserve the special tokens of conversations")] = False,
) -> None:
    """Train a byte-level BPE tokenizer, and measure how well it compresses text that it has not seen."""
    from efficientbench.data_tools.tokenizer.tokenizer_training import describe_training, train_on_files

    for line in describe_training(train_on_files(inputs, vocab_size, output, compare or [], text_key, chat)):
        print(line)


@app.command()
def sample(
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="JSONL, with a document a line")],
) -> None:
    """Write the embedded sample, the text of a smoke run without data: documentation that every Python carries."""
    from efficientbench.basics.files import disk_errors_explained, write_file
    from efficientbench.data_tools.tokenizing.documents import TEXT_KEY
    from efficientbench.data_tools.tokenizing.embedded import as_jsonl, embedded_documents

    documents = list(embedded_documents())
    with disk_errors_explained(output.absolute().parent):
        write_file(output, as_jsonl(documents, TEXT_KEY))
    print(f"{number_of(len(documents), 'document')} of the Python installation's documentation, in {output}")


@app.command()
def verify(
    prefix: Prefix,
    tokenizer: Annotated[str | None, typer.Option(help="for a pair without manifest: the one that made it")] = None,
) -> None:
    """Check a .bin/.idx pair; name the first byte that is damaged."""
    from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer
    from efficientbench.data_tools.tokens.inspection import verify_pair

    prefix = _without_suffix(prefix)
    header, corpus = verify_pair(prefix, load_tokenizer(tokenizer).vocab_size if tokenizer else None)
    against = "no manifest to compare with" if corpus is None else "as its manifest says"
    documents = number_of(header.documents, "document")
    print(f"{prefix}: whole: {documents} of {header.tokens:,} tokens ({header.dtype}), {against}")


def _data_folder(repository: str) -> Path:
    return Path("data") / repository.rpartition("/")[2]


def _show_parts(done: int, parts: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done:,} of {parts:,} parts", end="\n" if done == parts else "", file=sys.stderr, flush=True)


def _without_suffix(prefix: Path) -> Path:
    if not prefix.name:
        raise DataError(f"{prefix} is a folder: give the path of a .bin/.idx pair without its suffix")
    return prefix.with_suffix("") if prefix.suffix in (".bin", ".idx") else prefix


@contextmanager
def _interruption_explained() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print(in_users_language("interrupted: the same command continues from here"), file=sys.stderr)
        raise typer.Exit(130) from None


_DATA_MODULES = {"fsspec", "huggingface_hub", "pyarrow", "tiktoken", "tokenizers"}
"""Import names of the packages that the extra `data` installs."""


def main() -> None:
    """Run the command line; print a user's mistake on stderr, with exit code 2 and no traceback."""
    use_utf8()
    outlive_readers()
    # Other packages log warnings only: HTTP libraries would log every address, and signed addresses are secrets.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    logging.getLogger("efficientbench.data_tools").setLevel(logging.INFO)
    try:
        run_program(app, "efficientbench-data", EXAMPLES, dict.fromkeys(_DATA_MODULES, "data"))
    except (DataError, OSError) as error:
        print(in_users_language(f"error: {error}"), file=sys.stderr)
        sys.exit(2)
