"""The hub hears deaths and farewells at once."""

from __future__ import annotations

import json
import select
import time
from typing import Any

import pytest

from hftune.distributed.connection import Connection
from hftune.distributed.hub import Hub, connect
from hftune.distributed.verdicts import judge_hang

pytestmark = pytest.mark.long


@pytest.fixture
def hub() -> Any:
    found = Hub("token", judge_hang)
    yield found
    found.close()


def join(hub: Hub, rank: int, token: str = "token") -> Connection:
    return connect("127.0.0.1", hub.port, rank, token, {"host": f"h{rank}", "step": 3, "phase": "save"})


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
    first, stranger = join(hub, 0), join(hub, 1, token="another")
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
