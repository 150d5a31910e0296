"""One request after another, in one thread: each answer is what the model says alone, whatever else is asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hftune.tools.serving.errors import RequestError, stopping

Result = TypeVar("Result")


class WorkQueue:
    """Runs work in the order in which it came.

    Args:
        most: Works that may wait or run; more are refused.
    """

    def __init__(self, most: int) -> None:
        # A batch of several prompts is rounded otherwise than each alone, and answers would depend on who else asks.
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="hftune answers")
        self.most, self.count, self.stopped = most, 0, threading.Event()

    def check(self) -> None:
        """Refuse more work than may wait.

        Raises:
            RequestError: With status 503.
        """
        if self.stopped.is_set():
            raise stopping()
        if self.count >= self.most:
            message = f"{self.most} requests are waiting already (--max_waiting)"
            raise RequestError(message, status=503, code="queue_full", kind="server_error")

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, once it was its turn.

        Raises:
            RequestError: There is no room, or the server has stopped in the meantime.
        """
        self.check()
        self.count += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, self._unless_stopped, work)
        finally:
            self.count -= 1

    def _unless_stopped(self, work: Callable[[], Result]) -> Result:
        if self.stopped.is_set():
            raise stopping()
        result = work()
        # What was cut off is no answer.
        if self.stopped.is_set():
            raise stopping()
        return result

    def stop(self) -> None:
        """Take nothing more: what waits is never begun, and what runs is cut off if it asks."""
        self.stopped.set()
        self.thread.shutdown(wait=False)
