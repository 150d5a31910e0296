"""Who is behind, and how it is told."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.distributed.verdicts import Report, Verdict, judge, ranges, render

HANG = {"words": "", "rank": 0}


def report(**changes: Any) -> Report:
    values = {"host": "a", "step": 7, "phase": "backward", "count": 40, "seconds": 31.0, "waits": "all_reduce"}
    return {**values, "place": "zero.py:5 reduce", "stack": '  File "x.py"\n    wait()', "ago": 0.2, **changes}


@pytest.mark.parametrize(
    "odd, silent, behind",
    [
        ({"waits": None, "place": "read.py:3 read"}, set(), [2]),  # the others wait in a collective, this one does not
        ({"count": 39}, set(), [2]),  # all wait in collectives: this one in an earlier one
        ({"step": 6, "count": 44}, set(), [2]),  # the step counts before the number of phases
        ({"count": 41}, set(), [0, 1, 3]),  # one has gone on, the others are behind it
        ({}, {2}, [2]),  # no answer
        ({}, set(), []),  # all at the same place
    ],
)
def test_who_is_behind(odd: dict[str, Any], silent: set[int], behind: list[int]) -> None:
    reports = {rank: report(host="ab"[rank // 2]) for rank in range(4)}
    reports[2] |= odd
    for rank in silent:
        del reports[rank]["place"]
    verdict = judge(HANG, reports)
    assert (verdict.kind, verdict.ranks) == ("hang", behind)


def test_a_hang_in_one_message() -> None:
    reports = {rank: report(host="ab"[rank // 2]) for rank in range(4)}
    reports[2] |= {"waits": None, "phase": "forward", "place": "nfs.py:9 read"}
    text = render(judge(HANG, reports), 1, 30.0, "  File own.py\n    own()")
    first, *lines = text.strip().splitlines()
    assert first == (
        "[rank 1] error: the run hangs: rank 2 on b at step 7, forward, for 31 s; 3 other process(es) wait"
    )
    assert lines[0] == "  where: nfs.py:9 read"
    assert lines[1:4] == [
        "  > rank 2 on b: step 7, forward for 31 s, nfs.py:9 read",
        "    rank 0-1 on a: step 7, backward for 31 s, in all_reduce, zero.py:5 reduce",
        "    rank 3 on b: step 7, backward for 31 s, in all_reduce, zero.py:5 reduce",
    ]
    assert text.index("thread of rank 2") < text.index("to do:") < text.index("thread of rank 1")
    assert "own()" in text and "--hang_timeout (30 s)" in text
    assert "own()" not in render(judge(HANG, reports), 2, 30.0, "own()"), "the stack of rank 2 is there already"


def test_silent_lost_and_failed() -> None:
    reports = {0: report(), 1: report(host="b", ago=47.0)}
    del reports[1]["place"]
    hang = render(judge(HANG, reports), 0, 30.0, "")
    assert "rank 1 on b at step 7, backward, silent for 47 s (frozen" in hang and "no answer" in hang
    lost = render(Verdict("lost", [1, 2], {1: reports[1], 2: reports[1]}), 0, 30.0, "")
    assert "error: lost ranks 1-2 on b: ended without a word, together, last heard 47 s before, at step 7" in lost
    told = Verdict("failed", [1], reports, "ValueError: odd\nmore")
    assert "error: rank 1 on b has stopped at step 7, backward: ValueError: odd\nmore\n" in render(told, 0, 30.0, "")


def test_a_thousand_ranks_are_a_few_rows() -> None:
    reports = {rank: report(host=f"n{rank // 8}", place=f"f.py:{rank} f") for rank in range(1024)}
    text = render(judge(HANG, reports), 0, 30.0, "")
    assert len(text.splitlines()) < 40 and "more rows" in text


def test_spans() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
