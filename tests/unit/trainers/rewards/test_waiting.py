"""Reward functions that hang, fail, or return something else than rewards."""

from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path
from typing import Any

import pytest

from hftune.arguments.named_code import named_code
from hftune.errors import ArgumentError, UserError
from hftune.logging import notices
from hftune.trainers.rewards import waiting
from hftune.trainers.rewards.kept import KeptRewards
from hftune.trainers.rewards.waiting import Patience, WaitingReward, check_signature, looked_at, watched

GIVEN = {"prompts": ["a", "b", "c"], "completions": ["x", "y", "z"], "answer": [1, 2, 3], "trainer_state": object()}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PAUSE", 0.0)


def asked(function: Any, patience: Patience, **given: Any) -> list[float | None]:
    reward = watched(function, patience)
    assert isinstance(reward, WaitingReward) and reward.__name__ == function.__name__
    return asyncio.run(reward(**(GIVEN | given)))


def figures() -> tuple[list[tuple[str, float]], dict[str, Any]]:
    logged: list[tuple[str, float]] = []
    return logged, {"log_metric": lambda name, value: logged.append((name, value))}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "returned None, where a list of 2 numbers is wanted"),
        ("ab", "returned 'ab', where"),
        ({"a": 1, "b": 2}, "where a list of 2 numbers"),
        ([1.0], "returned 1 values for 2 answers"),
        ([1.0, "2"], "returned '2' for answer 1"),
        ([1.0, [2.0]], "returned [2.0] for answer 1"),
        ([float("inf"), 1.0], "returned inf for answer 0"),
    ],
)
def test_what_is_no_list_of_rewards_is_named(answer: Any, said: str) -> None:
    assert said in str(looked_at(answer, 2))
    with pytest.raises(UserError, match=r"the reward function odd returned") as refused:

        def odd(**_: Any) -> Any:
            return answer

        watched(odd, Patience())(prompts=["a", "b"], completions=["x", "y"])
    assert "--reward_funcs" in str(refused.value) and "--reward_retries" in str(refused.value)


def test_rewards_of_any_library_and_none_for_no_opinion() -> None:
    import numpy as np
    import torch

    assert looked_at((True, None), 2) == [1.0, None]
    assert looked_at(torch.tensor([0.5, 2.0]), 2) == looked_at(np.array([0.5, 2.0]), 2) == [0.5, 2.0]


def test_without_patience_a_function_is_called_in_this_thread() -> None:
    def here(prompts: list[str], **_: Any) -> list[float]:
        """As it was."""
        assert threading.current_thread() is threading.main_thread()
        return [0.5] * len(prompts)

    reward = watched(here, Patience())
    assert reward(**GIVEN) == [0.5] * 3 and reward.__name__ == "here" and reward.__doc__ == "As it was."


def test_one_that_fails_every_third_call_is_asked_again_and_counted() -> None:
    calls = 0

    def shaky(completions: list[str], **_: Any) -> list[float]:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise ConnectionError("the server is away")
        return [1.0] * len(completions)

    logged, more = figures()
    for _ in range(4):
        assert asked(shaky, Patience(retries=1), **more) == [1.0] * 3
    assert [value for name, value in logged if name == "rewards/shaky/failed"] == [0, 0, 1, 0, 0]
    assert any("shaky raised ConnectionError: the server is away" in text for text in notices())


USERS = """import json

def no_columns(prompts, completions):
    return [0.0] * len(completions)

def as_text(completions, **columns):
    return [float(answer.strip() == "4") for answer in completions]

def inside_a_library(completions, **columns):
    return [json.loads("no JSON") for _ in completions]

def other_columns(completions, solution, **columns):
    return [0.0] * len(completions)

class Called:
    def __call__(self, completions, **columns):
        return [1 / 0]

called = Called()
"""


@pytest.mark.parametrize("patience", [Patience(), Patience(retries=1)])
@pytest.mark.parametrize(
    ("name", "said", "line"),
    [
        ("no_columns", "raised TypeError: no_columns() got an unexpected keyword argument", 3),
        ("as_text", "raised AttributeError: 'list' object has no attribute 'strip'", 7),
        ("inside_a_library", "raised JSONDecodeError", 10),
        ("other_columns", "missing 1 required positional argument: 'solution'", 12),
        ("called", "raised ZeroDivisionError", 17),
    ],
)
def test_an_error_in_a_function_is_three_lines_with_its_own(
    name: str, said: str, line: int, patience: Patience, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(USERS)
    function = watched(named_code(f"{file}:{name}", "--reward_funcs"), patience)
    given = GIVEN | {"completions": [[{"role": "assistant", "content": "4"}]] * 3}
    with pytest.raises(UserError) as refused:
        asyncio.run(function(**given)) if patience else function(**given)
    text = str(refused.value)
    assert said in text and f"({file}:{line})" in text and text.count("\n") == 2
    assert ("the last of 2 tries" in text) == bool(patience)
    assert 'the text is completion[-1]["content"]' in text


def test_one_that_cannot_be_called_is_refused_before_anything_loads(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(USERS)
    named = {name: named_code(f"{file}:{name}", "--x") for name in ("no_columns", "as_text", "other_columns", "called")}
    with pytest.raises(ArgumentError, match="does not take all that it is called with: prompts, ") as refused:
        check_signature(named["no_columns"], "--judge_reward")
    assert f"--judge_reward ({file}:3)" in str(refused.value)
    assert "def no_columns(prompts, completions, **columns)" in str(refused.value)
    for name in ("as_text", "other_columns", "called"):
        check_signature(named[name], "--x")
    check_signature(math.hypot, "--x")


def test_one_that_hangs_is_named_and_asked_again() -> None:
    calls, forever = 0, threading.Event()

    def stuck(completions: list[str], **_: Any) -> list[float]:
        nonlocal calls
        calls += 1
        if calls == 1:
            forever.wait()
        return [2.0] * len(completions)

    assert asked(stuck, Patience(timeout=0.05, retries=1)) == [2.0] * 3
    assert any("stuck has not answered in 0.05 s; asked again (1 of 1)" in text for text in notices())
    calls = 0
    with pytest.raises(UserError, match=r"stuck has not answered in 0\.05 s"):
        asked(stuck, Patience(timeout=0.05))
    forever.set()


def test_nan_counts_as_no_opinion_and_is_said() -> None:
    def odd(**_: Any) -> list[float]:
        return [float("nan"), 1.0, 2.0]

    async def far(answer: list[int], **_: Any) -> list[float]:
        await asyncio.sleep(0)
        return [float(value) for value in answer]

    assert asked(far, Patience()) == [1.0, 2.0, 3.0], "coroutine functions are waited for as well"
    logged, more = figures()
    asked(odd, Patience(retries=1), **more)
    assert ("rewards/odd/nan", 1.0) in logged
    assert any("odd has returned NaN" in text for text in notices())


def test_an_answer_is_asked_for_once(tmp_path: Path) -> None:
    """Also where two are alike, and in the next run."""
    seen: list[list[Any]] = []

    def dear(completions: list[str], answer: list[int], trainer_state: Any, **_: Any) -> list[float | None]:
        assert trainer_state is GIVEN["trainer_state"]
        seen.append(list(zip(completions, answer, strict=True)))
        return [None if value == 2 else value / 3 for value in answer]

    logged, more = figures()
    first = asked(dear, Patience(kept=KeptRewards(tmp_path)), **more)
    assert first == [1 / 3, None, 1.0]
    again = Patience(kept=KeptRewards(tmp_path))
    assert asked(dear, again, **more) == first
    twice = {"prompts": ["a", "a", "n", "n"], "completions": ["x", "x", "q", "q"], "answer": [1, 1, 6, 6]}
    assert asked(dear, again, **twice, **more) == [1 / 3, 1 / 3, 2.0, 2.0]
    assert seen == [[("x", 1), ("y", 2), ("z", 3)], [("q", 6)]]
    assert [value for name, value in logged if name.endswith("kept")] == [0.0, 3.0, 3.0]
