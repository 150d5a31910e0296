"""Answers against right ones: of the kinds that public data have (`answers.txt`, a case a line), and their parts."""

from __future__ import annotations

import sys
import threading
import time
from fractions import Fraction
from pathlib import Path

import pytest

from hftune.trainers.rewards.answer_forms import Quantity, quantity
from hftune.trainers.rewards.builtin import accuracy
from hftune.trainers.rewards.final_answer import candidates
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


@pytest.mark.parametrize(
    "said", ["9^{9^{9^9}}", "2^{100000000}", "1000000000!", "5!!!!", "(" * 4000 + "1", "(" * 4000 + "1" + ")" * 4000]
)
def test_what_nothing_could_work_out_does_not_stop_the_run(said: str) -> None:
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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("5 1/2", Quantity(Fraction(11, 2), "")),
        ("-$1,234.50", Quantity(Fraction(-2469, 2), "$")),
        ("12.5%", Quantity(Fraction(25, 2), "%")),
        ("3 metres", Quantity(Fraction(3), "m")),
        ("3万", Quantity(Fraction(30000), "")),
        ("9.8 m/s^2", Quantity(Fraction(49, 5), "m/s^2")),
        # Not five metres and not two units of xy: products.
        ("5m", None),
        ("2xy", None),
        ("2 sin x", None),
        ("1/0", None),
        ("5 m + 2 s", None),
    ],
)
def test_numbers_with_units(text: str, found: Quantity | None) -> None:
    assert quantity(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"So \boxed{\frac{1}{2}} it is, not 7.", [r"\frac{1}{2}"]),
        (r"\boxed{\{1, 2\}} and \fbox{\text{a}}", [r"\text{a}"]),
        (r"\boxed{never closed", [r"\boxed{never closed"]),
        ("3 + 4 = 7\n#### 7", ["7"]),
        ("<think>maybe 3</think><answer>Paris</answer>", ["Paris"]),
        (r"<answer>The answer is \boxed{4}.</answer> 5", ["4"]),
        (r"\boxed{3} <answer>4</answer>", ["4"]),
        ("First 3, then 12.", ["First 3, then 12.", "12"]),
        ("The answer is 42, since 3 agree.", ["42, since 3 agree", "42"]),
        ("The answer is 3 + 4 = 7.", ["3 + 4 = 7", "7"]),
        (r"We get $\frac{1}{2}$.", [r"We get $\frac{1}{2}$.", r"\frac{1}{2}"]),
        ("So it is x^2 + 2.", ["So it is x^2 + 2."]),
        ("no idea", ["no idea"]),
    ],
)
def test_candidates(text: str, found: list[str]) -> None:
    assert candidates(text) == found
