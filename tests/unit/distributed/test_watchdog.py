"""A pause of the whole process is no hang; a forked worker has no word in it."""

from __future__ import annotations

import os
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from hftune.distributed import phases, watchdog
from hftune.distributed.watchdog import describe_lost_contact, lost_contact

pytestmark = pytest.mark.long


def test_a_pause_of_the_whole_process_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds pass without a turn: Ctrl-Z."""
    found = watchdog.Watchdog(60.0)
    with phases.timed("starting"):
        monkeypatch.setattr(phases.time, "monotonic", lambda: 1e9)
        assert not any(found._turn() for _ in range(60))
        last = found._turn()
        assert last and last.kind == "hang", "it does hang, apart from the pause"
        phases.keep_alive()
        assert not found._turn(), "it has moved"
    phases.enter(phases.PREPARATION, 0)


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
    assert "meet at nowhere:" in describe_lost_contact(gloo)


def test_torch_says_connection_lost_in_words_that_are_known() -> None:
    """The real error, of this version of torch: nobody listens at the port."""
    with pytest.raises(RuntimeError) as caught:
        dist.TCPStore("127.0.0.1", 9, 2, is_master=False, timeout=timedelta(seconds=0.3))
    assert lost_contact(caught.value) and "127.0.0.1" in describe_lost_contact(caught.value)
