"""Clients that share models, one of which does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from efficientbench.chat.pool import Pool, Worker


def counting(model: object) -> Generator[int, None, None]:
    yield from range(1, 4)


def failing(model: object) -> Generator[int, None, None]:
    yield 1
    raise ValueError("lost")


async def stays() -> bool:
    return False


@pytest.fixture
def worker() -> Any:
    with ThreadPoolExecutor(1) as thread:
        yield Worker(object(), thread)  # type: ignore[arg-type]


def test_a_client_that_does_not_read_blocks_no_model(worker: Worker) -> None:
    async def both() -> tuple[list[int], list[int]]:
        pool = Pool([worker])
        slow = pool.run(counting, stays, pool.place())
        first = await anext(slow)
        other = [each async for each in pool.run(counting, stays, pool.place())]
        return other, [first, *[each async for each in slow]]

    assert asyncio.run(asyncio.wait_for(both(), 60)) == ([1, 2, 3], [1, 2, 3])


def test_a_failed_answer_raises_after_its_parts_and_frees_the_model(worker: Worker) -> None:
    pool, seen = Pool([worker]), []

    async def read() -> None:
        async for each in pool.run(failing, stays, pool.place()):
            seen.append(each)

    with pytest.raises(ValueError, match="lost"):
        asyncio.run(asyncio.wait_for(read(), 60))
    assert (seen, pool.free) == ([1], 1)


def test_a_place_in_the_queue_counts_until_its_turn_and_is_released_once(worker: Worker) -> None:
    async def counts() -> list[int]:
        pool = Pool([worker])
        first, second, third = pool.place(), pool.place(), pool.place()
        # A model is free for one of them.
        seen = [pool.waiting]
        answer = pool.run(counting, stays, first)
        await anext(answer)
        seen.append(pool.waiting)
        for place in (third, third, first):
            pool.leave(place)
        seen.append(pool.waiting)
        await answer.aclose()
        async for _ in pool.run(counting, stays, second):
            pass
        return [*seen, pool.waiting]

    assert asyncio.run(asyncio.wait_for(counts(), 60)) == [2, 2, 1, 0]
