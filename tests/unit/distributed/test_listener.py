"""Who may talk to rank 0: the token, a rank that is waited for, once each, and in time."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Iterator

import pytest

from hftune.distributed import listener
from hftune.distributed.listener import Listener, PendingConnection, greeting, open_socket

WORD = "s3cret"
Make = Callable[[int | None], Listener]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Listener] = []

    def new(expected: int | None) -> Listener:
        made.append(Listener(open_socket(one_machine=True, master=""), WORD, expected, selectors.DefaultSelector()))
        return made[-1]

    yield new
    for one in made:
        one.close()


def said(door: Listener, words: bytes) -> tuple[int | None, socket.socket, PendingConnection]:
    """What comes of one who connects and sends `words`."""
    far = socket.create_connection(door.server.getsockname())
    door._selector.select(timeout=5)
    door.accept()
    pending = door._pending[-1]
    if words:
        far.sendall(words)
        pending.socket.setblocking(True)
    rank = door.authenticate(pending)
    return rank, far, pending


def is_closed(far: socket.socket) -> bool:
    far.settimeout(5)
    try:
        return far.recv(1) == b""
    except ConnectionError:
        return True


def test_the_token_and_a_rank_that_is_waited_for(make: Make) -> None:
    door = make(3)
    rank, far, pending = said(door, greeting(WORD, 2) + b'{"more": 1}')
    assert rank == 2 and pending.socket.recv(20) == b'{"more": 1}', "what follows is not read here"
    far.close()


@pytest.mark.parametrize(
    "words", [greeting("guess!", 1), greeting(WORD, 3), greeting(WORD, 1)[:-1] + b"x", WORD.encode() + b" " * 10]
)
def test_others_are_sent_away(make: Make, words: bytes) -> None:
    door = make(3)
    rank, far, _ = said(door, words)
    assert rank is None and is_closed(far) and door._pending == []


def test_a_rank_comes_once(make: Make) -> None:
    door = make(3)
    assert said(door, greeting(WORD, 1))[0] == 1
    again, far, _ = said(door, greeting(WORD, 1))
    assert again is None and is_closed(far)


def test_half_a_greeting_waits_and_is_dropped_when_late(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    door = make(3)
    rank, far, pending = said(door, b"s3")
    assert rank is None and door._pending == [pending]
    door.drop_late()
    assert door._pending == [pending]
    pending.since -= listener.SECONDS_TO_AUTHENTICATE + 1
    door.drop_late()
    assert door._pending == [] and is_closed(far)


def test_the_socket_closes_when_all_have_come(make: Make) -> None:
    door = make(2)
    assert said(door, greeting(WORD, 0))[0] == 0
    assert said(door, greeting(WORD, 1))[0] == 1
    assert door.server.fileno() == -1 and not door._open


def test_a_crowd_waits_in_the_queue(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_PENDING", 1)
    door = make(None)
    _, far, pending = said(door, b"")
    assert door.server not in door._selector.get_map(), "no more are accepted"
    far.close()
    pending.socket.setblocking(True)
    assert door.authenticate(pending) is None and door.server in door._selector.get_map()


def test_interfaces() -> None:
    with open_socket(one_machine=True, master="somewhere") as alone:
        assert alone.getsockname()[0] == "127.0.0.1"
    # A name that means loopback here is no address for others, and one that nobody has is not there.
    for master in ("localhost", "no.such.name.invalid", "198.51.100.1"):
        with open_socket(one_machine=False, master=master) as every:
            assert every.getsockname()[0] in ("::", "0.0.0.0")
