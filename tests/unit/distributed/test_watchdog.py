"""A pause of the whole process is no hang; a forked worker has no word in it."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from hftune.distributed import heartbeats, phases, watchdog
from hftune.distributed.verdicts import Verdict
from hftune.distributed.watchdog import describe_lost_contact, lost_contact

pytestmark = pytest.mark.long


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Verdict]:
    """Verdicts; nothing ends, and no thread looks."""
    found: list[Verdict] = []
    monkeypatch.setattr(watchdog.Watchdog, "_end", lambda self, verdict: found.append(verdict))
    monkeypatch.setattr(watchdog.Watchdog, "_watch", lambda self: None)
    return found


def test_a_pause_of_the_whole_process_is_no_hang(ended: list[Verdict], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with phases.timed("starting"):
        found = watchdog.Watchdog(60.0, alone=True)
        for seconds in (5.0, 5.0, 3600.0, 5.0, 5.0):  # Ctrl-Z for an hour
            clock[0] += seconds
            found._look()
        assert not ended
        for _ in range(12):
            clock[0] += 5.0
            found._look()
        assert ended, "it does hang, apart from the pause"
    phases.enter(phases.PREPARATION, 0)


def test_a_store_that_does_not_answer_ends_the_wait(ended: list[Verdict], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has been stopped, or its machine is cut off: a call into the store does not return."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    found = watchdog.Watchdog(600.0, alone=True)
    found.rank = 1
    found.others = heartbeats.Heartbeats(None, 1, 2, found._report, found._end)  # type: ignore[arg-type]
    for seconds in (5.0,) * 9 + (3600.0, *(5.0,) * 9):
        clock[0] += seconds
        found._look()
    assert not ended, "what came in a pause was not late"
    clock[0] += 5.0
    found._look()
    assert [(verdict.kind, verdict.ranks) for verdict in ended] == [("lost", [0])]


def test_a_forked_worker_says_no_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    dog = SimpleNamespace(stop=lambda words="": said.append(words), pid=os.getpid() + 1)
    monkeypatch.setattr(watchdog, "_watchdog", dog)
    watchdog.on_exit(ValueError("in a worker of a data loader"))
    watchdog.stop()
    assert not said
    dog.pid = os.getpid()
    monkeypatch.setattr(watchdog, "_watchdog", dog)
    watchdog.on_exit(ValueError("odd"))
    assert said == ["ValueError: odd"]


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_watchdog", None)
    watchdog.start(0.0)
    assert watchdog._watchdog is None


def test_errors_of_lost_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    gloo = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:1")
    assert lost_contact(gloo) and lost_contact(dist.DistStoreError("wait timeout after 10ms"))
    assert not lost_contact(RuntimeError("CUDA out of memory")) and not lost_contact(KeyError("gloo/"))
    assert not lost_contact(None)
    assert "nobody said why" in describe_lost_contact(gloo)
    monkeypatch.setenv("MASTER_ADDR", "nowhere")
    waited = dist.DistNetworkError("The client socket has timed out after 1000ms while trying to connect")
    assert "have not met" in describe_lost_contact(waited) and "nowhere:" in describe_lost_contact(waited)


def test_torch_says_connection_lost_in_words_that_are_known() -> None:
    """The real error, of this version of torch: nobody listens at the port."""
    with pytest.raises(RuntimeError) as caught:
        dist.TCPStore("127.0.0.1", 9, 2, is_master=False, timeout=timedelta(seconds=1))
    assert lost_contact(caught.value) and "have not met" in describe_lost_contact(caught.value)
