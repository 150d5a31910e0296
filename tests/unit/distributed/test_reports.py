"""Processes hear of each other through torch's store: hangs, deaths, last words, and the end of a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist

from hftune.distributed import watchdog
from hftune.distributed.verdicts import Report, Verdict
from hftune.distributed.watchdog import Watchdog

pytestmark = pytest.mark.long


class Member(Watchdog):
    """A process's watchdog, with what it is told in the end."""

    def __init__(self, store: dist.Store, rank: int, world: int) -> None:
        super().__init__(1000.0, store)
        self.rank, self.world, self.beat, self.told = rank, world, 0.1, threading.Event()
        self.report = {"host": f"h{rank}", "step": 3, "count": 9, "phase": "forward", "seconds": 1.0, "talks": True}
        self.details = {"waits": "all_reduce", "place": "zero.py:5 reduce", "stack": "wait()"}
        self.verdict = Verdict("none", [], {})
        self.write()

    def _report(self, details: bool) -> Report:
        return self.report | (self.details if details else {})

    def _end(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.told.set()

    def freeze(self) -> None:
        """End the thread without a word, as a signal would."""
        self._leave = lambda: None  # type: ignore[method-assign]
        self.done.set()
        self._thread.join()

    def hears(self, count: int) -> None:
        """Wait until it has read of so many."""
        end = time.monotonic() + 10
        while len(self._heard) < count and time.monotonic() < end:
            time.sleep(0.02)

    def kind(self) -> tuple[str, list[int]]:
        assert self.told.wait(20), "nothing came"
        return self.verdict.kind, self.verdict.ranks


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[Member]]]:
    monkeypatch.setattr(watchdog, "ANSWERS_WITHIN", 0.5)
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made: list[Member] = []

    def make(world: int) -> list[Member]:
        for rank in range(world):
            store = dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
            made.append(Member(dist.PrefixStore("word", store), rank, world))
        for member in made:
            member.start()
        return made

    yield make
    for member in made:
        member.stop()


def test_who_does_not_answer_is_named(members: Callable[[int], list[Member]]) -> None:
    first, second, frozen = members(3)
    frozen.freeze()
    second.ring()
    assert first.kind() == second.kind() == ("hang", [2])
    assert "place" not in second.verdict.reports[2] and second.verdict.reports[1]["waits"] == "all_reduce"


def test_who_does_not_wait_is_named_with_its_stack(members: Callable[[int], list[Member]]) -> None:
    first, second = members(2)
    second.details = {"waits": None, "place": "nfs.py:9 read", "stack": "read()"}
    first.ring()
    assert first.kind() == second.kind() == ("hang", [1])
    assert first.verdict.reports[1]["stack"] == "read()"


def test_after_a_lost_contact_the_silent_are_the_lost(members: Callable[[int], list[Member]]) -> None:
    first, second, lost = members(3)
    lost.freeze()
    second.ring("lost contact with the other processes")
    assert first.kind() == second.kind() == ("lost", [2])
    assert first.verdict.reports[2]["host"] == "h2" and first.verdict.reports[2]["ago"] > 0


def test_a_lost_contact_with_all_alive_is_told_in_its_words(members: Callable[[int], list[Member]]) -> None:
    first, second = members(2)
    second.ring("lost contact with the other processes")
    assert first.kind() == ("failed", [1]) and first.verdict.words.startswith("lost contact")


def test_last_words_are_told(members: Callable[[int], list[Member]]) -> None:
    first, second, third = members(3)
    second.report["step"] = 9
    second.stop("ValueError: odd")
    third.ring("what broke after that")
    assert first.kind() == third.kind() == ("failed", [1])
    assert first.verdict.words == "ValueError: odd" and first.verdict.reports[1]["step"] == 9


def test_a_goodbye_is_no_loss_and_rank_0_ends_the_watch(
    members: Callable[[int], list[Member]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "MACHINE_GONE", 1.0)
    first, second, third = members(3)
    second.report["talks"] = False  # the run is over for it
    second.stop()
    time.sleep(1.5)
    assert not first.told.is_set() and not third.told.is_set()
    first.stop()
    assert third.done.wait(20) and not third.told.is_set()


def test_a_machine_without_a_word_is_lost_but_not_before_training(
    members: Callable[[int], list[Member]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, reading, gone = members(3)
    reading.report["talks"] = False
    time.sleep(0.5)  # its next report says so
    first.hears(3)
    reading.freeze()
    gone.freeze()
    monkeypatch.setattr(watchdog, "MACHINE_GONE", 1.0)
    assert first.kind() == ("lost", [2])


def test_one_process_of_a_machine_may_be_busy(
    members: Callable[[int], list[Member]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, busy = members(3)
    second.report["host"] = busy.report["host"] = "h1"
    time.sleep(0.5)
    first.hears(3)
    busy.freeze()
    monkeypatch.setattr(watchdog, "MACHINE_GONE", 1.0)
    assert not first.told.wait(1.5)


def test_rank_0_may_be_the_one_that_does_not_answer(members: Callable[[int], list[Member]]) -> None:
    first, second = members(2)
    second.hears(1)
    first.freeze()
    second.ring()
    assert second.kind() == ("hang", [0]) and second.verdict.reports[0]["host"] == "h0"


def test_a_store_that_is_gone_is_rank_0_s_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "ANSWERS_WITHIN", 0.2)

    class Gone(dist.HashStore):
        def multi_get(self, keys: list[str]) -> list[bytes]:
            raise dist.DistNetworkError("Connection reset by peer")

    member = Member(Gone(), 1, 2)
    member.start()
    assert member.kind() == ("lost", [0])
