"""One after another, in order, and no more than may wait."""

from __future__ import annotations

import asyncio
import threading

import pytest

from hftune.tools.serving.errors import RequestError
from hftune.tools.serving.queue import WorkQueue


def test_works_run_one_after_another_in_their_order() -> None:
    done: list[int] = []
    inside = threading.Semaphore(1)

    def work(number: int) -> int:
        assert inside.acquire(blocking=False), "two at once"
        done.append(number)
        inside.release()
        return number

    async def main() -> list[int]:
        queue = WorkQueue(8)
        found = await asyncio.gather(*(queue.run(lambda number=number: work(number)) for number in range(8)))
        queue.stop()
        return found

    assert asyncio.run(main()) == done == [*range(8)]


def test_what_is_too_much_is_refused_and_what_is_cut_off_is_no_answer() -> None:
    going, may_end = threading.Event(), threading.Event()

    def slow() -> str:
        going.set()
        may_end.wait(10)
        return "half an answer"

    async def main() -> list[BaseException | str]:
        queue = WorkQueue(2)
        tasks = [asyncio.create_task(queue.run(slow)), asyncio.create_task(queue.run(lambda: "never begun"))]
        await asyncio.to_thread(going.wait, 10)
        with pytest.raises(RequestError, match="waiting already") as full:
            await queue.run(slow)
        assert full.value.status == 503
        queue.stop()
        may_end.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        with pytest.raises(RequestError, match="stopping"):
            queue.check()
        return found

    found = asyncio.run(main())
    assert [str(one) for one in found] == ["The server is stopping"] * 2
