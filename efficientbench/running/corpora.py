"""Make or find the tokenized corpora of a run before any rank starts, and check them against its configuration."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import ConfigError
from efficientbench.basics.files import disk_errors_explained
from efficientbench.config.schema import DataConfig, RunConfig
from efficientbench.data_tools.chat.record import ConversationRecord
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer
from efficientbench.data_tools.tokenizing.corpus import Corpus, load_corpus, pair_prefix, prepare_corpus
from efficientbench.data_tools.tokens.indexed import bin_path, idx_path, map_index
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments, unigram_entropy
from efficientbench.data_tools.tokens.intact import BlockReader, verified_part
from efficientbench.data_tools.tokens.manifest import load_checksums, load_record
from efficientbench.data_tools.tokens.splitting import SPLITS, split_documents
from efficientbench.metrics.records.facts import Reading
from efficientbench.metrics.records.record_parts import DataSource
from efficientbench.planning.vocabulary import too_small
from efficientbench.running.job import Job
from efficientbench.training.reinforcement.questions import Questions, check_rewards

SEEN_ENDS = 1000
"""The most documents of a source whose ends are looked at, evenly spread."""


def prepare_corpora(config: RunConfig) -> list[Corpus]:
    """Return the corpora of `config.data.sources`, in their order; tokenize sources that are not tokenized yet.

    Verify their files, except tokens that `block_readers` leaves to the ranks.

    Raises:
        DataError: a source cannot be read or tokenized, is damaged, or has tokens outside its vocabulary.
        ConfigError: the sources have different tokenizers, the model's vocabulary is smaller than theirs, or a split
            has no document.
    """
    data = config.data
    if config.training.objective != "pretrain":
        _check_source(config)
    corpora = []
    for source in data.sources:
        path = Path(source) if source else None
        show = partial(_show_progress, source or "the sample text")
        corpora.append(prepare_corpus(path, data.tokenizer, Path(data.cache), data.trained_vocab_size, show))
    _check_tokenizers(data, corpora)
    if corpora[0].vocab_size > config.model.vocab_size:
        source = f"the tokenizer {data.tokenizer or corpora[0].tokenizer_folder}"
        raise ConfigError(too_small(config, corpora[0].vocab_size, source))
    if config.training.objective != "pretrain":
        _check_conversations(config, corpora[0])
    if config.training.objective == "rl":
        _check_questions(config, corpora[0])
    for corpus in corpora:
        check_split(data.split, corpus)
        if data.attention_within_documents:
            check_ends(corpus)
    # Here rather than in the ranks, where it would pass for a hang: it reads all tokens that were never split before.
    prefixes, cache = [corpus.prefix for corpus in corpora], Path(data.cache).absolute() / SPLITS
    with disk_errors_explained(cache):
        split_documents(prefixes, data.split, corpora[0].vocab_size, cache)
    return corpora


def load_corpora(job: Job) -> list[Corpus]:
    """Return the job's corpora in a rank, from the manifests that the parent process wrote."""
    return [load_corpus(manifest) for manifest in job.corpora]


def block_readers(corpora: Sequence[Corpus]) -> dict[Path, BlockReader]:
    """Return prefix → reader that verifies the blocks it reads, for corpora too large to be verified before a run."""
    readers = {}
    for corpus in corpora:
        if verified_part(corpus) == "blocks read":
            tokens = bin_path(corpus.prefix)
            checksums, dtype = load_checksums(corpus.manifest)[tokens], map_index(idx_path(corpus.prefix))[0]
            readers[corpus.prefix] = BlockReader(tokens, checksums, corpus.manifest, dtype, corpus.vocab_size)
    return readers


def recorded_sources(
    job: Job, duplicates: Sequence[int] | None = None, too_long: Sequence[int] | None = None
) -> list[DataSource]:
    """Return the record's entry of each source.

    `duplicates`: `Split.duplicates` of each source; `too_long`: `Batches.too_long`; None where they are not known.
    """
    known: Sequence[int | None] = duplicates or [None] * len(job.corpora)
    left_out: Sequence[int | None] = too_long or [None] * len(job.corpora)
    return [
        DataSource(
            source=corpus.source,
            weight=weight,
            documents=corpus.documents,
            tokens=corpus.tokens,
            fingerprint=corpus.fingerprint,
            tokenizer_fingerprint=corpus.tokenizer_fingerprint,
            duplicates=repeated,
            too_long=longer,
            verified=verified_part(corpus),
        )
        for weight, corpus, repeated, longer in zip(
            job.config.data.weights, load_corpora(job), known, left_out, strict=True
        )
    ]


def what_was_read(job: Job, tokens: int, source_tokens: Sequence[int]) -> Reading:
    """Return what a run has read of its text.

    Args:
        job: the run's job.
        tokens: tokens trained on since the run's start.
        source_tokens: training tokens of each source.
    """
    weights = job.config.data.weights
    prefixes = [corpus.prefix for corpus in load_corpora(job)]
    entropy = unigram_entropy(list(zip(weights, prefixes, strict=True)))
    return Reading(tokens, tuple(zip(weights, source_tokens, strict=True)), entropy)


def check_split(split: Sequence[float], corpus: Corpus) -> None:
    """Refuse a split that leaves training or validation without a document.

    Raises:
        ConfigError: the message names a split that works.
    """
    # Megatron rounds the same way, and never stops searching for tokens in a split without documents.
    ends = [round(corpus.documents * end / sum(split)) for end in itertools.accumulate(split)]
    documents = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    wanted = [True, True, split[2] > 0]
    for name, count, is_wanted in zip(("training", "validation", "test"), documents, wanted, strict=True):
        if is_wanted and count == 0:
            helps = f"set data.split=[{corpus.documents - 1},1,0]" if corpus.documents > 1 else "more are needed"
            raise ConfigError(
                f"data.split: {list(split)} leaves none of the {number_of(corpus.documents, 'document')} of "
                f"{corpus.source} for {name}; {helps}"
            )


def check_ends(corpus: Corpus) -> None:
    """Refuse documents that do not end with the tokenizer's end-of-document token; looks at SEEN_ENDS of them.

    Raises:
        ConfigError: the message names the document.
    """
    documents = IndexedDocuments(corpus.prefix)
    for number in range(0, len(documents), -(-len(documents) // SEEN_ENDS)):
        tokens = documents[number]
        if len(tokens) and tokens[-1] != corpus.eod_id:
            raise ConfigError(
                f"data.attention_within_documents: document {number:,} of {corpus.source} ends with token {tokens[-1]} "
                f"and not with the tokenizer's end-of-document token {corpus.eod_id}, by which a run finds the ends: "
                "tokenize the text again with that token behind each document, or leave the key out"
            )


def _show_progress(source: str, done: int, parts: int) -> None:
    # One line per tenth, and none for a source that takes seconds.
    if parts >= 10 and done % max(1, parts // 10) == 0:
        print(f"tokenizing {source}: {done:,} of {parts:,} parts", flush=True)


_MADE = "efficientbench-data chat MIXTURE.yaml --output PREFIX"


def _check_source(config: RunConfig) -> None:
    """Raise a ConfigError unless there is one source, which may be a pair: text is not tokenized in vain."""
    objective, sources = config.training.objective, config.data.sources
    if len(sources) > 1:
        raise ConfigError(
            f"training.objective={objective} takes one source, and data.path has {len(sources)}: name all tasks in one "
            f"mixture ({_MADE})"
        )
    path = Path(sources[0]) if sources[0] else None
    if path is None or (path.exists() and pair_prefix(path) is None):
        raise _without_mask(config)


def _check_conversations(config: RunConfig, corpus: Corpus) -> None:
    """Raise a ConfigError unless the source is a pair of conversations with a mask."""
    if load_record(corpus.manifest, ConversationRecord) is None:
        raise _without_mask(config)


def _without_mask(config: RunConfig) -> ConfigError:
    objective, source = config.training.objective, config.data.sources[0] or "the sample text"
    uses = "learns" if objective == "sft" else "validates on"
    return ConfigError(
        f"training.objective={objective} {uses} what a mask marks, and {source} has none: make conversations with "
        f"one ({_MADE})"
    )


def _check_questions(config: RunConfig, corpus: Corpus) -> None:
    """Print how many questions there are. Raises ConfigError or DataError: none, or no reward for their answers."""
    check_rewards(config.rl)
    folder = corpus.tokenizer_folder
    questions = Questions(config, load_tokenizer(folder), str(folder))
    left_out = f"; {questions.too_long:,} others leave no room for an answer" if questions.too_long else ""
    rl, asked = config.rl, f"{len(questions.asked):,} questions of {config.rl.task}"
    print(f"{asked}, {questions.per_step:,} in a step with {rl.samples} answers each{left_out}", flush=True)


def _check_tokenizers(data: DataConfig, corpora: Sequence[Corpus]) -> None:
    first = corpora[0]
    for source, other in zip(data.sources, corpora, strict=True):
        if other.tokenizer_fingerprint != first.tokenizer_fingerprint:
            raise ConfigError(
                f"data.path: {data.sources[0]} and {source} have different tokenizers ({first.tokenizer_folder} and "
                f"{other.tokenizer_folder}): tokenize both with the same one, or give their texts and data.tokenizer"
            )
