"""A forked worker hides no death; a pause of the whole process is no hang."""

from __future__ import annotations

import os
import select
import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.distributed import phases, watchdog
from hftune.distributed.hub import Hub, connect
from hftune.distributed.verdicts import judge_hang

pytestmark = pytest.mark.long


def test_a_worker_of_a_data_loader_does_not_keep_a_dead_process_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = Hub("word", judge_hang)
    first, second = (connect("127.0.0.1", hub.port, rank, "word", {}) for rank in range(2))
    time.sleep(0.3)
    monkeypatch.setattr(watchdog, "_watchdog", SimpleNamespace(connection=second, hub=None))
    child = os.fork()
    if not child:
        time.sleep(30)
        os._exit(0)
    try:
        monkeypatch.setattr(watchdog, "_watchdog", None)
        second.close()
        assert select.select([first.socket], [], [], 8.0)[0], "nothing came"
        (message,) = first.receive() or []
        assert message["verdict"]["ranks"] == [1]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        hub.close()


def test_a_pause_of_the_whole_process_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[dict[str, Any]] = []
    monkeypatch.setattr(watchdog.Watchdog, "_end", lambda self, verdict: ended.append(verdict))
    monkeypatch.setattr(watchdog.Watchdog, "_watch", lambda self: None)
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with phases.timed("starting"):
        found = watchdog.Watchdog(60.0)
        for seconds in (5.0, 5.0, 3600.0, 5.0, 5.0):  # Ctrl-Z for an hour
            clock[0] += seconds
            found._look()
        assert not ended
        for _ in range(10):
            clock[0] += 5.0
            found._look()
        assert ended, "it does hang, apart from the pause"
    phases.enter(phases.PREPARATION, 0)
