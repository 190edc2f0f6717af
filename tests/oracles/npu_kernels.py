"""torch_npu's kernels by their formulas, in float32, with the limits of the real ones: for tests only.

They show that what is given to the kernels, and what is made of their results, is right; nothing about the kernels.
Formulas and limits: op-plugin's documentation of `npu_nsa_select_attention` and the reference in its tests.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch


class NsaSelectAttention:
    """`npu_nsa_select_attention` and its gradient, without a mask, which the real one does not support."""

    def __init__(self, dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)) -> None:
        self.dtypes = dtypes

    def torch_npu(self, chip: str = "Ascend910B2") -> SimpleNamespace:
        """A module with both functions and a device of that name."""
        return SimpleNamespace(
            npu=SimpleNamespace(get_device_name=lambda index: chip),
            npu_nsa_select_attention=self.forward,
            npu_nsa_select_attention_grad=self.backward,
        )

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        topk_indices: torch.Tensor,
        scale_value: float,
        head_num: int,
        select_block_size: int,
        select_block_count: int,
        *,
        atten_mask: None = None,
        actual_seq_qlen: list[int],
        actual_seq_kvlen: list[int],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self._check(query, key, value, topk_indices, head_num, select_block_size, select_block_count)
        assert len(actual_seq_qlen) == len(actual_seq_kvlen)
        rows = _rows(topk_indices, select_block_size, actual_seq_qlen, actual_seq_kvlen)
        scores = _scores(query, key, rows) * scale_value
        largest = scores.amax(dim=-1, keepdim=True)
        exponentials = (scores - largest).exp()
        sums = exponentials.sum(dim=-1, keepdim=True)
        out = torch.einsum("tghk,tgkd->tghd", exponentials / sums, _gather(value, rows)).flatten(1, 2)
        return out.to(query.dtype), *(each.flatten(1, 2).expand(-1, -1, 8) for each in (largest, sums))

    def backward(
        self,
        grad: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_out: torch.Tensor,
        softmax_max: torch.Tensor,
        softmax_sum: torch.Tensor,
        topk_indices: torch.Tensor,
        scale_value: float,
        head_num: int,
        select_block_size: int,
        select_block_count: int,
        *,
        atten_mask: None = None,
        actual_seq_qlen: list[int],
        actual_seq_kvlen: list[int],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self._check(query, key, value, topk_indices, head_num, select_block_size, select_block_count)
        assert grad.shape == attention_out.shape == (*query.shape[:2], value.shape[2])
        assert softmax_max.shape == softmax_sum.shape == (*query.shape[:2], 8)
        groups = key.shape[1]
        rows = _rows(topk_indices, select_block_size, actual_seq_qlen, actual_seq_kvlen)
        largest, sums, grads, out = (
            each.float().unflatten(1, (groups, -1)) for each in (softmax_max, softmax_sum, grad, attention_out)
        )
        probabilities = (_scores(query, key, rows) * scale_value - largest[..., :1]).exp() / sums[..., :1]
        product = (grads * out).sum(dim=-1, keepdim=True)
        inner = torch.einsum("tghd,tgkd->tghk", grads, _gather(value, rows))
        grad_scores = probabilities * (inner - product) * scale_value
        grad_query = torch.einsum("tghk,tgkd->tghd", grad_scores, _gather(key, rows)).flatten(1, 2)
        by_head = query.float().unflatten(1, (groups, -1))
        grad_key = _scatter(key, rows, torch.einsum("tghk,tghd->tgkd", grad_scores, by_head))
        grad_value = _scatter(value, rows, torch.einsum("tghk,tghd->tgkd", probabilities, grads))
        return grad_query.to(query.dtype), grad_key, grad_value

    def _check(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        topk_indices: torch.Tensor,
        heads: int,
        block: int,
        count: int,
    ) -> None:
        assert query.dtype == key.dtype == value.dtype
        assert query.dtype in self.dtypes
        assert (query.shape[2], key.shape[2], value.shape[2]) == (192, 192, 128)
        assert (block, count) == (64, 16)
        assert heads == query.shape[1]
        assert 128 % (heads // key.shape[1]) == 0
        assert heads // key.shape[1] <= 32
        assert topk_indices.dtype == torch.int32
        assert topk_indices.shape == (query.shape[0], key.shape[1], count)
        assert (topk_indices >= 0).all()


def _rows(blocks: torch.Tensor, size: int, query_ends: list[int], key_ends: list[int]) -> torch.Tensor:
    """The keys that each query reads, as rows of all keys: [T, groups, count · size]."""
    first_key = torch.zeros(blocks.shape[0], dtype=torch.long)
    for sequence in range(1, len(query_ends)):
        first_key[query_ends[sequence - 1] : query_ends[sequence]] = key_ends[sequence - 1]
    for begin, end in zip([0, *key_ends], key_ends, strict=False):
        assert (end - begin) % size == 0
        assert end - begin >= size * blocks.shape[2]
    rows = blocks.long()[..., None] * size + torch.arange(size)
    return rows.flatten(2) + first_key[:, None, None]


def _gather(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Gather [keys, groups, D] → [T, groups, K, D]."""
    return x.float()[rows, torch.arange(x.shape[1])[:, None]]


def _scatter(x: torch.Tensor, rows: torch.Tensor, parts: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x, dtype=torch.float32)
    groups = torch.arange(x.shape[1])[:, None].expand_as(rows)
    return total.index_put_((rows, groups), parts, accumulate=True).to(x.dtype)


def _scores(query: torch.Tensor, key: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Scores [T, groups, heads of a group, K]."""
    by_head = query.float().unflatten(1, (key.shape[1], -1))
    return torch.einsum("tghd,tgkd->tghk", by_head, _gather(key, rows))
