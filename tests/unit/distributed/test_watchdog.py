"""The hub hears deaths and exit_hooks at once; phases cost next to nothing; errors of lost peers are known."""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
import timeit
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from hftune.distributed import connection_errors, launch, phases, stacks, watchdog
from hftune.distributed.connection import Connection
from hftune.distributed.hub import Hub, connect
from hftune.distributed.verdicts import judge_hang

pytestmark = pytest.mark.long


@pytest.fixture
def hub() -> Any:
    found = Hub("word", judge_hang)
    yield found
    found.close()


def join(hub: Hub, rank: int, word: str = "word") -> Connection:
    return connect("127.0.0.1", hub.port, rank, word, {"host": f"h{rank}", "step": 3, "phase": "save"})


def heard(wire: Connection, seconds: float = 8.0) -> list[dict[str, Any]] | None:
    ready, _, _ = select.select([wire.socket], [], [], seconds)
    assert ready, "nothing came"
    return wire.receive()


def test_a_connection_that_ends_is_a_death(hub: Hub) -> None:
    first, second, third = (join(hub, rank) for rank in range(3))
    time.sleep(0.3)
    second.close()
    third.close()
    (message,) = heard(first) or []
    assert message["verdict"]["kind"] == "lost" and message["verdict"]["ranks"] == [1, 2], "one event"
    assert message["verdict"]["reports"]["2"]["host"] == "h2"


def test_a_farewell_is_none(hub: Hub) -> None:
    first, second = join(hub, 0), join(hub, 1)
    time.sleep(0.3)
    second.send({"bye": ""})
    second.close()
    assert not select.select([first.socket], [], [], 2.0)[0]
    hub.close()
    assert heard(first) == [{"end": True}]


def test_a_word_after_a_farewell_is_no_harm(hub: Hub) -> None:
    """The watchdog's thread may be about to send its report when the main thread says goodbye."""
    first, second = join(hub, 0), join(hub, 1)
    time.sleep(0.3)
    lines = [{"bye": ""}, {"report": {"step": 4}}]
    second.socket.sendall(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    time.sleep(0.5)
    join(hub, 2).send({"bye": "the hub still listens", "report": {"step": 9}})
    (message,) = heard(first) or []
    assert message["verdict"]["words"] == "the hub still listens"


def test_last_words_are_told(hub: Hub) -> None:
    first, second = join(hub, 0), join(hub, 1)
    time.sleep(0.3)
    second.send({"bye": "ValueError: odd", "report": {"step": 9}})
    (message,) = heard(first) or []
    assert message["verdict"]["words"] == "ValueError: odd" and message["verdict"]["reports"]["1"]["step"] == 9


def test_strangers_are_shown_out(hub: Hub) -> None:
    first, stranger = join(hub, 0), join(hub, 1, word="another")
    assert heard(stranger) is None
    assert not select.select([first.socket], [], [], 1.5)[0], "and are no death"


def test_who_does_not_answer_is_named(hub: Hub) -> None:
    first, frozen = join(hub, 0), join(hub, 1)
    time.sleep(0.3)
    first.send({"stalled": True, "report": {"waits": "all_reduce"}})
    assert heard(first) == [{"where": True}]
    first.send({"answer": True, "report": {"waits": "all_reduce"}})
    (message,) = heard(first) or []
    assert message["verdict"]["ranks"] == [1] and message["verdict"]["reports"]["1"]["silent"]
    frozen.close()


def test_a_worker_of_a_data_loader_does_not_keep_a_dead_process_alive(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = join(hub, 0), join(hub, 1)
    time.sleep(0.3)
    monkeypatch.setattr(watchdog, "_watchdog", SimpleNamespace(connection=second, hub=None))
    child = os.fork()
    if not child:
        time.sleep(30)
        os._exit(0)
    try:
        monkeypatch.setattr(watchdog, "_watchdog", None)
        second.close()
        (message,) = heard(first) or []
        assert message["verdict"]["ranks"] == [1]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


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


def test_who_waits_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "123"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launch, "_PATIENCE", 0.05)
    said: list[str] = []
    monkeypatch.setattr(launch.get_logger(), "warning", said.append)
    with launch.report_waiting():
        time.sleep(0.4)
    assert said == ["rank 0 waits for the other 3 process(es) at node1:123"]
    with launch.report_waiting():
        pass
    time.sleep(0.2)
    assert len(said) == 1


def test_phases_are_counted_and_timed_only_while_asked() -> None:
    before = phases.now()
    with pytest.raises(KeyError), phases.timed("starting"):
        phases.enter(phases.FORWARD, 5)
        inside = phases.now()
        assert inside.timed and inside.step == 5 and inside.count == before.count + 2
        raise KeyError
    assert not phases.now().timed and phases.now().name == phases.FORWARD, "an error is told with its phase"
    phases.enter(phases.PREPARATION, 0)


def test_a_phase_costs_next_to_nothing() -> None:
    times = timeit.repeat(lambda: phases.enter(phases.FORWARD), number=2000, repeat=5)
    assert min(times) / 2000 < 50e-6, "seven of them a step"


def test_what_the_main_thread_waits_for() -> None:
    found: list[str | None] = []

    def look() -> None:
        time.sleep(0.3)
        found.extend([stacks.waiting_for(), stacks.innermost_frame(), stacks.main_thread_stack()])

    thread = threading.Thread(target=look)
    thread.start()
    time.sleep(0.6)
    thread.join()
    assert found[0] is None and "time.sleep(0.6)" in str(found[2])
    assert str(found[1]).startswith("test_watchdog.py:") and str(found[1]).endswith(
        "test_what_the_main_thread_waits_for"
    )


def test_what_nccl_has_not_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder's own fields, as torch's FlightRecorder writes them; there is no NCCL here."""
    done = {"profiling_name": "nccl:broadcast", "state": "completed", "collective_seq_id": 6}
    stuck = {"profiling_name": "nccl:all_reduce", "state": "started", "collective_seq_id": 7}
    dump = json.dumps({"entries": [done, {**stuck, "process_group": ["0", "default_pg"]}]})
    asked: dict[str, bool] = {}
    monkeypatch.setattr(stacks.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(stacks.torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(
        stacks.torch._C._distributed_c10d,
        "_dump_nccl_trace_json",
        lambda **flags: asked.update(flags) or dump,
        raising=False,
    )
    assert stacks.waiting_for() == "all_reduce number 7 of default_pg"
    assert asked == {"includeCollectives": True, "onlyActive": True}


def test_errors_of_lost_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    gloo = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:1")
    assert connection_errors.lost_contact(gloo) and connection_errors.lost_contact(
        dist.DistStoreError("wait timeout after 10ms")
    )
    assert not connection_errors.lost_contact(
        RuntimeError("CUDA out of memory")
    ) and not connection_errors.lost_contact(KeyError("gloo/"))
    assert not connection_errors.lost_contact(None)
    monkeypatch.setenv("MASTER_ADDR", "nowhere")
    text = connection_errors.describe_lost_contact(
        dist.DistNetworkError("The client socket has timed out after 1000ms while trying to connect")
    )
    assert "have not met" in text and "nowhere:" in text


def test_torch_says_connection_lost_in_words_that_are_known() -> None:
    """The real error, of this version of torch: nobody listens at the port."""
    with pytest.raises(RuntimeError) as caught:
        dist.TCPStore("127.0.0.1", 9, 2, is_master=False, timeout=timedelta(seconds=1))
    assert connection_errors.lost_contact(caught.value) and "have not met" in connection_errors.describe_lost_contact(
        caught.value
    )
