"""What remains to be done for a checkpoint once its files are written, beside the training."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Publisher:
    """One job at a time in a thread of its own; what goes wrong there is raised where it is waited for.

    The jobs read and rename files that nothing writes any more, and never talk to other processes.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._problem: BaseException | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Begin with a job, after the one before.

        Raises:
            Whatever the job before raised.
        """
        self.wait()

        def run() -> None:
            try:
                job()
            except BaseException as problem:
                self._problem = problem

        self._thread = threading.Thread(target=run, name="hftune-publisher")
        self._thread.start()

    def wait(self) -> None:
        """Until the job is done, if there is one.

        Raises:
            Whatever it raised, once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem
