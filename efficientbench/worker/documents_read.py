"""Figures of a run whose attention ends with documents: those of the documents that it has trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.variant import known
from efficientbench.config.schema import RunConfig
from efficientbench.costs.compute import AttentionWork, hardware_flops_per_token
from efficientbench.costs.model import dense_keys_per_query, flops_per_token, keys_read_per_query, over_documents
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.metrics.records.facts import RunFacts
from efficientbench.training.data.batches import Batches


def all_lengths(config: RunConfig, batches: Batches) -> Mapping[int, int]:
    """Return length → documents of that length that the ranks have read; empty where attention goes on.

    All ranks must call this together. Ranks that read the same documents count them each.
    """
    if not config.data.attention_within_documents:
        return {}
    return sum(map(Counter, gather(dict(batches.document_lengths), dict[int, int])), Counter())


def facts_of(facts: RunFacts, config: RunConfig, device_type: str, lengths: Mapping[int, int]) -> RunFacts:
    """Return the facts with the FLOPs of the documents read; `lengths`: as of `all_lengths`."""
    from efficientbench.model.kernels.names import attention_work

    if not lengths:
        return facts
    model, recompute = config.model, config.training.recompute

    def hardware(tokens: int) -> float:
        # Only a layer's own kernels do other work at other lengths; other kernels may be measured for theirs.
        def work(view: ModelConfig) -> AttentionWork:
            training = config.training.model_copy(update={} if view.plain_scores else {"seq_len": tokens})
            return attention_work(config.model_copy(update={"training": training, "model": view}), device_type)

        return hardware_flops_per_token(model, tokens, recompute, work)

    def full_square(tokens: int) -> float:
        return flops_per_token(model, tokens, recompute).training_full_square

    return replace(
        facts,
        flops_per_token=known(lambda: over_documents(lengths, lambda each: flops_per_token(model, each).training)),
        flops_per_token_full_square=known(lambda: over_documents(lengths, full_square)),
        flops_per_token_hardware=known(lambda: over_documents(lengths, hardware)),
    )


def figures_of(facts: RunFacts, config: RunConfig, lengths: Mapping[int, int]) -> dict[str, float | None]:
    """Return the record's figures that follow from the documents read, by name; `facts`: from `facts_of`."""
    if not lengths:
        return {}
    return {
        "flops_per_token": facts.flops_per_token,
        "keys_read_per_query": known(
            lambda: over_documents(lengths, lambda each: keys_read_per_query(config.model, each))
        ),
        "dense_keys_per_query": over_documents(lengths, dense_keys_per_query),
    }
