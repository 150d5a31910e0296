"""Answers against right ones, of the kinds that public data have: `answers.txt`, a case a line."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from hftune.trainers.rewards.builtin import accuracy
from hftune.trainers.rewards.same_answer import same_answer

Case = tuple[str, str, str]


def _kinds() -> dict[str, list[Case]]:
    kinds: dict[str, list[Case]] = {}
    text = Path(__file__).with_name("answers.txt").read_text(encoding="utf-8")
    for line in text.splitlines()[1:]:
        if line.startswith("# "):
            own = kinds.setdefault(line[2:], [])
        else:
            right, said, verdict = line.replace("⏎", "\n").split("¦")
            own.append((right.strip(), said.strip(), verdict.strip()))
    return kinds


KINDS = _kinds()


def _wrong(cases: list[Case], unsure: float) -> list[Case]:
    verdicts = {"1": 1.0, "0": 0.0, "m": unsure}
    return [case for case in cases if accuracy([case[1]], answer=[case[0]]) != [verdicts[case[2]]]]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_certainly_equal(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    assert _wrong(KINDS[kind], unsure=0.0) == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_equal_as_mathematics(kind: str) -> None:
    pytest.importorskip("math_verify", reason="pip install 'hftune[math]'")
    assert _wrong(KINDS[kind], unsure=1.0) == []


def test_as_many_cases_as_were_promised() -> None:
    assert sum(map(len, KINDS.values())) >= 300


@pytest.mark.parametrize("said", ["9^{9^{9^9}}", "10^{10^{10}}", "2^{100000000}", "1000000000!", "5!!!!"])
def test_a_number_that_nothing_could_write_down_does_not_stop_the_run(said: str) -> None:
    pytest.importorskip("math_verify", reason="pip install 'hftune[math]'")
    began = time.monotonic()
    assert not same_answer("42", said)
    assert time.monotonic() - began < 5


def test_in_a_thread() -> None:
    """Rewards that wait for servers are asked in threads, where math-verify cannot keep time."""
    pytest.importorskip("math_verify", reason="pip install 'hftune[math]'")
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(same_answer(r"2\sqrt{2}", r"\sqrt{8}")))
    thread.start()
    thread.join()
    assert found == [True]


def test_a_thousand_open_brackets() -> None:
    assert not same_answer("(1, 2)", "(" * 4000 + "1, 2")
    assert not same_answer("(1, 2)", "(" * 4000 + "1, 2" + ")" * 4000)
