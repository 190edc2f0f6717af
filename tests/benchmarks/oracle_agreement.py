"""How closely other code agrees with our models on the same weights, and our models with themselves.

    python tests/benchmarks/oracle_agreement.py [--write]

Logits, loss and the largest difference of any gradient, in float32 on the CPU, each relative to the largest value of
its tensor: against transformers' classes, Megatron-core's own model and written formulas; decoded in parts from a cache
against one pass, also by the classes of transformers themselves; documents packed into one sequence against each alone.
Exit code 1: two differ by more than 1e-5, or a mechanism has fewer than two that compute it.
"""

from __future__ import annotations

import importlib.metadata
import math
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch
from oracles import agreement
from oracles.agreement import OTHERS, PAIRS
from oracles.oracle import build, relative_error, text, weights_of
from support.decoding import from_cache, in_parts
from support.measured import options, write_content
from support.packed_documents import packed_beside_separate
from support.single_rank import world_of_one_rank

from efficientbench.devices.cpu import CPU

MOST = 1e-5
WAYS = ((5, 7), (14, 1), (1, 3))
"""Tokens that are computed first, and at a time after them."""
Row = dict[str, str]


def main() -> None:
    arguments = options(__doc__).parse_args()
    warnings.simplefilter("ignore")
    with world_of_one_rank():
        rows = list(measured())
    mechanisms = [
        {"mechanism": each, "others": str(len(others)), "which": ", ".join(named(other) for other in sorted(others))}
        for each, others in agreement.shown_by().items()
    ]
    for row in (*rows, *mechanisms):
        print("  ".join(row.values()), flush=True)
    if arguments.write:
        conditions = "float32, batches of 2 × 23 tokens (NSA's 2 × 64), widths of 48; largest differences, relative to "
        conditions += "the largest value of the tensor; digits: in which all of a row agree"
        write_content(__file__, CPU(), {"conditions": conditions, "rows": rows, "mechanisms": mechanisms})
    few = any(int(each["others"]) < 2 for each in mechanisms)
    sys.exit(few or any("no" in row["digits"] for row in rows))


def measured() -> Iterator[Row]:
    """Yield the rows of the table."""
    for name, (_, others) in PAIRS.items():
        for other in others:
            found = agreement.agreement(name, other)
            yield row(name, named(other), found.logits, found.loss, found.gradients)
        config = agreement.configured(name)
        model, tokens = build(config).eval(), text(config, config.training.seq_len)
        with torch.no_grad():
            whole = model(tokens)
        cached = [from_cache(model, tokens, in_parts(tokens.shape[1], *way)) for way in WAYS]
        yield row(name, "itself, from a cache", max(relative_error(each, whole) for each in cached))
        for other in others:
            if OTHERS[other][1] == "transformers":
                oracle = agreement.oracle_of(other).same_weights(weights_of(model), config.model).eval()
                # The float64 rule in place of a recurrent layer's own returns no state for their cache.
                if "linear_attention" not in (getattr(oracle.config, "layer_types", None) or ()):
                    yield row(name, f"{named(other)} with itself, from a cache", own_cache_error(oracle, tokens))
        packed = packed_beside_separate(config)
        gradients = max(packed.gradients.values())
        yield row(name, "itself, documents packed", packed.logits, packed.loss, gradients)
    for window in (None, 4):
        output, gradients = agreement.agreement_with_gpt_oss(window)
        name = "sinks: the kernel alone" + (f", window of {window}" if window else "")
        yield row(name, f"transformers {importlib.metadata.version('transformers')} gpt-oss", output, None, gradients)


def own_cache_error(oracle: Any, tokens: torch.Tensor) -> float:
    """Return the largest difference of a transformers model that decodes from its cache from its own whole pass."""
    with torch.no_grad():
        whole, worst = oracle(tokens).logits, 0.0
        for way in WAYS:
            kept, logits = None, []
            for part in tokens.split(in_parts(tokens.shape[1], *way), dim=1):
                found = oracle(part, past_key_values=kept, use_cache=True)
                kept = found.past_key_values
                logits.append(found.logits)
            worst = max(worst, relative_error(torch.cat(logits, dim=1), whole))
    return worst


def named(other: str) -> str:
    """Return the name of other code, with the version of its package."""
    _, package, name = OTHERS[other]
    return name if package is None else f"{package} {importlib.metadata.version(package)} {name}"


def row(model: str, beside: str, logits: float, loss: float | None = None, gradients: float | None = None) -> Row:
    """Return a row of the table; None: nothing was compared."""
    errors = [each for each in (logits, loss, gradients) if each is not None]
    cells = ["–" if each is None else f"{each:.1e}" for each in (logits, loss, gradients)]
    # A loss may be equal to the last bit.
    digits = math.floor(-math.log10(max(*errors, 1e-9)))
    agrees = str(digits) if max(errors) < MOST else f"no: {digits}"
    return {"model": model, "beside": beside, **dict(zip(("logits", "loss", "gradients"), cells, strict=True))} | {
        "digits": agrees
    }


if __name__ == "__main__":
    main()
