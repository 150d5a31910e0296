"""Heartbeats of all processes through torch's own TCPStore; where something is wrong each judges by all reports.

Every second a thread of each process writes a report under its rank and looks for an alarm; rank 0 looks for machines
that have fallen silent. Once a process has rung, each writes where it is, reads what the others have written, and comes
to the verdict by itself. The store's server is no Python code: it answers also while a main thread keeps the
interpreter to itself.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch.distributed as dist

from hftune.distributed import ranks, verdicts
from hftune.distributed.verdicts import Report, Verdict
from hftune.logging import get_logger

BEAT, _QUICKEST = 1.0, 0.2
"""Seconds between two heartbeats: at most, and at least where the time-out itself is short."""

ANSWERS_WITHIN = 3.0
"""Seconds in which processes that are alive say where they are."""

STORE_GONE = 10.0
"""Seconds without an answer of the store after which rank 0, in whose process it may be, counts as hung or gone."""

MACHINE_GONE = 45.0
"""Seconds without a word of any process of a machine; less could be code that keeps the interpreter."""

PAUSE = 10.0
"""Seconds without a turn after which this process itself has stood still: Ctrl-Z, a debugger."""

LINGER = 2.0
"""Seconds in which the others read the last word; the store may be in this very process."""

_ALARM, _ANSWERS = "alarm", "answers"


class Heartbeats:
    """The thread that talks to the store, which nothing else does: the store may stop answering.

    Args:
        store: A connection of its own.
        report: Makes the report of this process, with where it is if asked so.
        end: Says a verdict and ends the process.
    """

    def __init__(
        self,
        store: Any,  # a torch.distributed Store, which has no type there
        rank: int,
        world: int,
        report: Callable[[bool], Report],
        end: Callable[[Verdict], None],
        beat: float = BEAT,
    ) -> None:
        self.store, self.rank, self.world, self.beat = store, rank, world, max(_QUICKEST, min(BEAT, beat))
        self._report, self._end = report, end
        self._heard: dict[int, tuple[bytes, float]] = {}  # the last report of a rank as written, and when it changed
        self._alarm: dict[str, Any] | None = None
        self._over, self._words, self._count = threading.Event(), "", 0
        self.answered = time.monotonic()
        # A daemon: a store that does not answer must not keep a finished process alive.
        self._thread = threading.Thread(target=self._run, name="hftune heartbeats", daemon=True)

    def start(self) -> None:
        """Go on in a thread; all have written their first reports by now."""
        self._thread.start()

    def ring(self, words: str = "") -> None:
        """Have all processes say where they are, and judge; `words` of a lost contact, else it is a hang."""
        self._alarm = self._alarm or {"words": words, "rank": self.rank}

    def stop(self, words: str = "") -> None:
        """Say goodbye; `words` say why the others cannot go on without this process."""
        self._words = words
        self._over.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(STORE_GONE)

    def without_store(self, *, hangs: bool) -> Verdict:
        """The verdict where the store does not answer, from what this process knows."""
        first = self._told().get(0, {"ago": time.monotonic() - self.answered})
        own = {self.rank: self._report(True)} if hangs else {}
        return verdicts.judge({"words": "", "ranks": [] if hangs else [0]}, {0: first, **own})

    def _run(self) -> None:
        try:
            while not self._over.wait(self.beat):
                if (verdict := self._turn()) is not None:
                    self._over.set()
                    return self._end(verdict)
            self._leave()
        except (dist.DistError, OSError):
            # The server is gone, and with it rank 0; where the run is over, this process is about to know.
            if not self._over.wait(ANSWERS_WITHIN):
                self._end(self.without_store(hangs=False))

    def _turn(self) -> Verdict | None:
        self.write()
        self._read(range(self.world) if self.rank == 0 else [0])
        if self.rank == 0 and (gone := self._gone()):
            self._alarm = {"words": "", "rank": 0, "ranks": gone}
        if self._alarm is not None:
            self._sound(self._alarm)
        return self._judge(json.loads(self.store.get(_ALARM))) if self.store.check([_ALARM]) else None

    def write(self, *, details: bool = False, **more: Any) -> None:
        """Write the report of this process."""
        self._count += 1
        report = {**self._report(details), "beat": self._count, **more}
        self.store.set(str(self.rank), json.dumps(report))

    def _read(self, of: Iterable[int]) -> None:
        """Take in the reports; the time since the last one counts from here where this process has stood still."""
        before, self.answered = self.answered, time.monotonic()
        if self.answered - before > PAUSE:
            self._heard = {rank: (written, self.answered) for rank, (written, _) in self._heard.items()}
        asked = [*of]
        for rank, written in zip(asked, self.store.multi_get([str(rank) for rank in asked]), strict=True):
            if rank not in self._heard or self._heard[rank][0] != written:
                self._heard[rank] = (written, time.monotonic())

    def _told(self) -> dict[int, Report]:
        """The last report of each rank, with `ago`, the seconds since it came."""
        now = time.monotonic()
        return {rank: {**json.loads(text), "ago": round(now - at, 1)} for rank, (text, at) in self._heard.items()}

    def _gone(self) -> list[int]:
        """Ranks of machines of which nobody has said a word for long, though none may be silent, as before training."""
        told = self._told()
        speaking = {one["host"] for one in told.values() if one["ago"] < MACHINE_GONE or not one.get("talks")}
        return sorted(rank for rank, report in told.items() if report["host"] not in speaking)

    def _judge(self, alarm: dict[str, Any]) -> Verdict:
        """Say where this process is, wait for the others to do so, and judge."""
        if alarm.get("ends"):
            return Verdict("end", [], {})
        self.write(details=True)
        answered, end = self.store.add(_ANSWERS, 1), time.monotonic() + ANSWERS_WITHIN
        # All have answered, or some do not in time: those are part of the verdict.
        while answered < self.world and time.monotonic() < end:
            time.sleep(_QUICKEST)
            answered, self.answered = self.store.add(_ANSWERS, 0), time.monotonic()
        self._read(range(self.world))
        return verdicts.judge(alarm, self._told())

    def _sound(self, alarm: dict[str, Any]) -> None:
        self.store.compare_set(_ALARM, "", json.dumps(alarm))  # the first one counts

    def _leave(self) -> None:
        self.write(left=True, words=self._words)
        self.store.add(_ANSWERS, 1)
        if self._words:
            self._sound({"words": self._words, "rank": self.rank})
            time.sleep(LINGER if self.rank == 0 else 0)
        elif self.rank == 0:
            self._sound({"ends": True})


def join(report: Callable[[bool], Report], end: Callable[[Verdict], None], beat: float) -> Heartbeats | None:
    """Heartbeats through the store at which the processes have met; None, on all ranks, where one cannot reach it.

    All must call it. The store is torchrun's own or that in rank 0's process: what listens is torch's alone.
    """
    # Runs that follow one another in the same processes, or with the same torchrun, share a store.
    word = ranks.gathered_objects(uuid4().hex)[0]
    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", "0")
    found = None
    try:
        # A connection of its own: what the main thread waits for on its one must not hold up a heartbeat.
        server = dist.TCPStore(address, int(port), is_master=False, timeout=timedelta(seconds=30))  # type: ignore[attr-defined]
        store = dist.PrefixStore(f"hftune/{word}", server)  # type: ignore[attr-defined]
        found = Heartbeats(store, ranks.rank(), ranks.world_size(), report, end, beat)
        found.write()
    except (dist.DistError, ValueError) as error:
        get_logger().warning(
            "rank %d cannot reach torch's store at %s:%s (%s): each process watches itself alone",
            *(ranks.rank(), address, port, error),
        )
    if not ranks.all_agree(found is not None) or found is None:
        return None
    found.start()
    return found
