"""Strangers at rank 0's watchdog: whatever they send is not parsed, the thread lives, and heartbeats still count."""

from __future__ import annotations

import json
import random
import select
import socket
import string
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from hftune.distributed import connection as lines
from hftune.distributed import hub as hubs
from hftune.distributed import listener
from hftune.distributed.connection import Connection
from hftune.distributed.hub import Hub, connect
from hftune.distributed.listener import greeting, open_socket
from hftune.distributed.verdicts import judge_hang

WORD = "0123456789abcdef" * 4
RANDOM = random.Random(24)


def _bytes(count: int) -> bytes:
    return RANDOM.randbytes(count)


HOSTILE = {
    "100,000 brackets": b"[" * 100_000,
    "100,000 brackets and a line's end": b"[" * 100_000 + b"\n",
    "braces": b'{"a":' * 50_000 + b"\n",
    "mixed nesting": b'[{"a":' * 40_000 + b"\n",
    "the word in JSON, as before": json.dumps({"word": WORD, "rank": 1, "report": {}}).encode() + b"\n",
    "no word": b'{"rank": 1}\n',
    "null": b"null\n",
    "a number": b"1e999999\n",
    "a number of a megabyte": b"9" * 1_000_000 + b"\n",
    "NaN": b"NaN\n",
    "an empty line": b"\n",
    "many empty lines": b"\n" * 100_000,
    "a zero byte": b"\0",
    "zero bytes": b"\0" * 100_000,
    "no valid UTF-8": b"\xff\xfe\xfa" * 1000,
    "half a character": b"\xe2\x82",
    "surrogates": b'"\\ud800"\n' * 100,
    "a pickle": b"\x80\x04\x95\x17\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.",
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "SSH": b"SSH-2.0-x\r\n",
    "5 megabytes": b"A" * 5_000_000,
    "half the word": WORD[:32].encode(),
    "the word in capitals": greeting(WORD.upper(), 1),
    "the word, one letter off": greeting(WORD[:-1] + "0", 1),
    "the word behind a blank": b" " + greeting(WORD, 1),
    "the word without a rank": WORD.encode() + b"\n" * 10,
    "a rank below zero": WORD.encode() + b"-000000001",
    "a rank in Arabic digits": WORD.encode() + "٣".encode() * 5,
    "a rank beyond the run": greeting(WORD, 64),
    "the largest rank": WORD.encode() + b"9999999999",
    "a rank that is here already": greeting(WORD, 0),
    "a verdict": b'{"verdict": {"kind": "lost", "ranks": [0], "reports": {}}}\n',
    "a farewell": b'{"bye": "x", "rank": 0}\n',
    "a stall": b'{"stalled": true}\n',
} | {f"random bytes {number}": _bytes(RANDOM.randrange(1, 3000)) for number in range(70)}


@pytest.fixture
def hub() -> Iterator[Hub]:
    found = Hub(WORD, judge_hang, expected=64)
    yield found
    found.close()
    found._thread.join(3)


def _still_works(hub: Hub, first: Connection, rank: int = 63) -> None:
    """A heartbeat is heard, somebody new comes in, and its last words are passed on."""
    assert hub._thread.is_alive()
    first.send({"report": {"step": 77}})
    late = connect("127.0.0.1", hub.port, rank, WORD, {"host": "late"})
    _until(lambda: rank in hub._members and hub._members[0].report.get("step") == 77)
    late.send({"bye": "farewell", "report": {"step": 9}})
    assert select.select([first.socket], [], [], 5)[0]
    (message,) = first.receive() or []
    assert message["verdict"]["words"] == "farewell" and message["verdict"]["ranks"] == [rank]
    late.close()


def _until(fact: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def _send(hub: Hub, payload: bytes) -> socket.socket:
    stranger = socket.create_connection((hub.address, hub.port), timeout=5)
    with suppress(OSError):  # shown out in the middle
        stranger.sendall(payload)
    return stranger


def _is_shown_out(stranger: socket.socket) -> bool:
    stranger.settimeout(30)
    try:
        return stranger.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_strangers_send_ends_their_connection_alone(
    hub: Hub, payload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = connect("127.0.0.1", hub.port, 0, WORD, {"host": "ours"})
    _until(lambda: 0 in hub._members and hub._members[0].report)
    monkeypatch.setattr(listener, "SECONDS_TO_AUTHENTICATE", 0.1)  # for those that are shorter than the word
    seen: list[bytes] = []
    loads = lines.json.loads
    monkeypatch.setattr(lines.json, "loads", lambda text: seen.append(text) or loads(text))
    stranger = _send(hub, payload)
    assert _is_shown_out(stranger)
    assert not seen, "nothing of a stranger's is parsed"
    assert [*hub._members] == [0]
    monkeypatch.setattr(lines.json, "loads", loads)
    monkeypatch.setattr(listener, "SECONDS_TO_AUTHENTICATE", 5.0)
    _still_works(hub, first)
    first.close()


def test_words_are_compared_in_constant_time(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    same = listener.hmac.compare_digest
    monkeypatch.setattr(
        listener.hmac, "compare_digest", lambda one, other: compared.append((one, other)) or same(one, other)
    )
    assert _is_shown_out(_send(hub, greeting("x" * len(WORD), 1)))
    assert compared == [(b"x" * len(WORD), WORD.encode())]


def test_a_stranger_who_says_nothing_is_shown_out(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SECONDS_TO_AUTHENTICATE", 0.3)
    assert _is_shown_out(_send(hub, b""))


def test_letter_by_letter_takes_no_longer(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow loris: each byte must not begin the time anew."""
    monkeypatch.setattr(listener, "SECONDS_TO_AUTHENTICATE", 0.5)
    stranger = socket.create_connection(("127.0.0.1", hub.port))
    with suppress(OSError):  # shown out in the middle of the right word
        for letter in greeting(WORD, 5):
            stranger.sendall(bytes([letter]))
            time.sleep(0.05)
    assert _is_shown_out(stranger) and 5 not in hub._members


def test_the_right_word_in_pieces_is_let_in(hub: Hub) -> None:
    ours = socket.create_connection(("127.0.0.1", hub.port))
    for letter in greeting(WORD, 5):
        ours.sendall(bytes([letter]))
    ours.sendall(b'{"report": {"st')
    time.sleep(0.05)
    ours.sendall(b'ep": 4}}\n')
    _until(lambda: 5 in hub._members and hub._members[5].report == {"step": 4})


def test_a_reset_in_the_middle(hub: Hub) -> None:
    first = connect("127.0.0.1", hub.port, 0, WORD, {})
    for _ in range(50):
        stranger = _send(hub, b"x")
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.close()
    _still_works(hub, first)


def test_a_flood_of_silent_connections(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_PENDING", 16)
    monkeypatch.setattr(listener, "SECONDS_TO_AUTHENTICATE", 0.4)
    first = connect("127.0.0.1", hub.port, 0, WORD, {})
    _until(lambda: 0 in hub._members)
    flood = [_send(hub, b"") for _ in range(200)]
    _until(lambda: len(hub._listener._pending) == 16)
    for _ in range(20):
        assert len(hub._listener._pending) <= 16
        time.sleep(0.01)
    first.send({"report": {"step": 3}})
    _until(lambda: hub._members[0].report.get("step") == 3)
    for stranger in flood:
        stranger.close()
    _still_works(hub, first)


def test_no_file_descriptors_left(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """`accept` fails for want of descriptors: the thread waits and tries again."""
    first = connect("127.0.0.1", hub.port, 0, WORD, {})
    _until(lambda: 0 in hub._members)
    accept, failures = (
        hub._listener.server.accept,
        [OSError(24, "too many open files")] * 5 + [ConnectionAbortedError(103, "")],
    )

    class Server:
        def accept(self) -> Any:
            if failures:
                raise failures.pop()
            return accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(server, name)

    server = hub._listener.server
    monkeypatch.setattr(hub._listener, "server", Server())
    seventh = connect("127.0.0.1", hub.port, 7, WORD, {"host": "h"})
    _until(lambda: 7 in hub._members)
    assert not failures
    monkeypatch.setattr(hub._listener, "server", server)
    _still_works(hub, first)
    seventh.close()


def test_the_socket_closes_when_everybody_is_here() -> None:
    hub = Hub(WORD, judge_hang, expected=2)
    wires = [connect("127.0.0.1", hub.port, rank, WORD, {"host": f"h{rank}"}) for rank in range(2)]
    _until(lambda: len(hub._members) == 2 and not hub._listener._open)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", hub.port), timeout=2)
    wires[1].send({"bye": "x"})
    assert select.select([wires[0].socket], [], [], 5)[0] and "verdict" in (wires[0].receive() or [{}])[0]


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"report": 5}',
        b'{"report": [1]}',
        b'{"report": null}',
        b'{"bye": ["a", {"b": 1}]}',
        b'{"bye": 7}',
        b"[]",
        b"\xff\xff",
        b'{"answer": {}, "stalled": 0}',
    ],
    ids=lambda line: line[:16].decode(errors="replace"),
)
def test_odd_lines_of_our_own_do_not_end_the_thread(hub: Hub, line: bytes) -> None:
    first = connect("127.0.0.1", hub.port, 0, WORD, {})
    other = connect("127.0.0.1", hub.port, 1, WORD, {})
    _until(lambda: len(hub._members) == 2)
    other.socket.sendall(line + b"\n")
    time.sleep(0.1)
    other.close()
    first.send({"report": {"step": 5}})
    _until(lambda: hub._over.is_set() or hub._members[0].report.get("step") == 5)
    if hub._over.is_set():  # it said that it fails, and everybody is told so
        assert "verdict" in (first.receive() or [{}])[0]


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b"\xff", b"nonsense", b"5"], ids=["nested", "binary", "text", "number"]
)
def test_a_process_hears_nonsense_from_its_hub(line: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    wire = Connection(ours)
    theirs.sendall(line + b"\n")
    found: Any = []
    while found == []:
        found = wire.receive()
    assert found is None
    theirs.close(), wire.close()


def test_one_machine_is_loopback_alone() -> None:
    with open_socket(one_machine=True, master="203.0.113.9") as server:
        assert server.getsockname()[0] == "127.0.0.1"


def test_several_machines_meet_at_the_master_s_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """127.0.0.2 stands for an address of this machine that others reach."""
    monkeypatch.setattr(listener, "_is_local_only", lambda address: False)
    with open_socket(one_machine=False, master="127.0.0.2") as server:
        assert server.getsockname()[0] == "127.0.0.2"


@pytest.mark.parametrize(
    "master",
    ["203.0.113.9", "localhost", "127.0.0.1", "127.0.1.1", "::1", "no.such.host.invalid", "0.0.0.0", "x" * 300],
)
def test_an_address_that_is_not_here_is_no_end(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"localhost": "127.0.0.1"}

    def found(name: str, *args: Any, **given: Any) -> Any:
        address = known.get(name, name)
        if not address.replace(".", "").replace(":", "").isdigit():
            raise socket.gaierror("unknown")
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [(family, socket.SOCK_STREAM, 6, "", (address, 0))]

    monkeypatch.setattr(listener.socket, "getaddrinfo", found)
    with open_socket(one_machine=False, master=master) as server:
        assert server.getsockname()[0] in ("::", "0.0.0.0")


@pytest.mark.parametrize(
    ("hosts", "local", "world", "alone"),
    [({"a"}, 2, 2, True), ({"a", "b"}, 2, 2, False), ({"a"}, 1, 2, False), ({"a", "b"}, 1, 2, False)],
)
def test_who_listens_where(
    hosts: set[str], local: int, world: int, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def noted(**given: Any) -> socket.socket:
        asked.update(given)
        return open_socket(one_machine=True, master="")

    monkeypatch.setattr(hubs, "open_socket", noted)
    monkeypatch.setattr(hubs.ranks, "local_world_size", lambda: local)
    monkeypatch.setattr(hubs.ranks, "world_size", lambda: world)
    monkeypatch.setenv("MASTER_ADDR", "node1")
    one, other = hubs.open_hub(hosts), hubs.open_hub(hosts)
    assert asked == {"one_machine": alone, "master": "node1"}
    assert len(one.token) == 64 and set(one.token) <= {*string.hexdigits} and one.token != other.token
    assert one._listener._expected == world
    one.close(), other.close()
