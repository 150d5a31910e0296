"""What an answer comes to."""

from __future__ import annotations

import pytest

from hftune.trainers.rewards.final_answer import candidates, marked


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


def test_what_is_marked_in_a_right_answer() -> None:
    """Else it is right as it is written: its last number is not all of it."""
    assert marked("She has 3 + 4 = 7.\n#### 7") == "7"
    assert marked(r"\frac{1}{2}") == r"\frac{1}{2}"
    assert marked("Apollo 11") == "Apollo 11"
