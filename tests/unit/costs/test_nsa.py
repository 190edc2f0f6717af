"""Keys that NSA reads, its layouts and its configuration."""

from __future__ import annotations

import pytest
from support.printed import on_one_line

from efficientbench.architecture.nsa import Keys, NSAConfig, keys_in_sight, keys_of_last_query, keys_read
from efficientbench.config.load import resolve
from efficientbench.costs.model import dense_keys_per_query, keys_read_per_query, kv_cache_bytes_per_token
from efficientbench.planning.plan import plan_anywhere
from efficientbench.planning.plan_table import print_plan

SMALL = NSAConfig(compress_block=6, compress_stride=2, select_block=10, select_count=3, window=5)


def printed(name: str, *overrides: str) -> str:
    return on_one_line(print_plan, plan_anywhere(resolve(name, overrides=overrides)))


def test_published_blocks_read_more_than_dense_attention_at_2048_tokens() -> None:
    assert keys_read(NSAConfig(), 2048).total // 2048 == 1294
    assert keys_of_last_query(NSAConfig(), 2048) == Keys(127, 1024, 512)
    assert "keys read per query 1,294.7, dense 1,024.5: NOT fewer" in printed("nsa_1.5B")
    assert "keys read per query 1,510.6, dense 2,048.5 " in printed("nsa_1.5B", "training.seq_len=4096")
    assert "keys read per query 1,024.5 " in printed("gqa_1.5B")


@pytest.mark.parametrize("size", ["0.5B", "1.5B", "3B"])
def test_smoke_reads_at_most_half_of_dense_attention(size: str) -> None:
    config = resolve(f"nsa_{size}", smoke=True)
    seq_len = config.training.seq_len
    assert keys_read_per_query(config.model, seq_len) <= dense_keys_per_query(seq_len) / 2
    other = resolve(f"gqa_{size}", smoke=True)
    assert config.training.global_batch_size * seq_len == other.training.global_batch_size * other.training.seq_len


@pytest.mark.parametrize("seq_len", [1, 5, 6, 10, 31, 77])
@pytest.mark.parametrize("nsa", [SMALL, NSAConfig()])
def test_keys_in_sight_are_those_that_the_masks_show(nsa: NSAConfig, seq_len: int) -> None:
    sight = keys_in_sight(nsa, seq_len)
    compressed, selected, window = 0, 0, 0
    for query in range(seq_len):
        ends = range(nsa.compress_block - 1, seq_len, nsa.compress_stride)
        compressed += sum(end <= query for end in ends)
        own = query // nsa.select_block
        # Which blocks beside its own does not matter: all of them lie wholly in the past.
        others = sorted(range(own), reverse=True)[: nsa.select_count - 1]
        selected += query - own * nsa.select_block + 1 + len(others) * nsa.select_block
        window += len(range(max(query - nsa.window + 1, 0), query + 1))
    assert sight == Keys(compressed, selected, window)


def test_cache_grows_by_the_selected_branch_and_the_compressed_keys() -> None:
    # 28 layers, 2 groups of 128: keys and values, and one in 16 of each once more; 2 bytes.
    expected = 28 * (2 * 2 * 128 + 2 * 2 * 128 // 16) * 2
    assert kv_cache_bytes_per_token(resolve("nsa_1.5B").model, "bf16") == expected
