"""What all ranks of a user's own loop have measured and noted, together."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.monitoring.measurement import RankMeasurement
from efficientbench.metrics.records.facts import Validation


def of_all_ranks(
    mine: RankMeasurement, validations: Sequence[Validation]
) -> tuple[list[RankMeasurement], list[Validation], bool]:
    """Return all ranks' measurements, the validations, and whether this rank writes; all ranks call this together.

    A validation's loss is rank 0's, its tokens are those of all ranks. Raises MetricsError: the ranks noted validations
    after different steps.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return [mine], list(validations), True
    from efficientbench.metrics.monitoring.exchange import gather

    found = gather((mine, list(validations)), tuple[RankMeasurement, list[Validation]])
    return (
        [measured for measured, _ in found],
        together([noted for _, noted in found]),
        torch.distributed.get_rank() == 0,
    )


def together(ranks: Sequence[Sequence[Validation]]) -> list[Validation]:
    """Return the first rank's validations with the tokens of all ranks.

    Raises MetricsError: the ranks noted validations after different steps.
    """
    steps = [[each.step for each in noted] for noted in ranks]
    other = next((number for number, each in enumerate(steps) if each != steps[0]), None)
    if other is not None:
        raise MetricsError(
            f"rank 0 noted validations after the steps {steps[0]}, and rank {other} after {steps[other]}: every rank "
            "calls `validated` after the same steps"
        )
    same_steps = zip(*ranks, strict=True)
    tokens = ((sum(each.tokens for each in same), sum(each.measured_tokens for each in same)) for same in same_steps)
    return [
        replace(noted, tokens=seen, measured_tokens=measured)
        for noted, (seen, measured) in zip(ranks[0], tokens, strict=True)
    ]
