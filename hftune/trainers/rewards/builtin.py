"""Rewards that need no model: verifiable answers, a format, a length. `--reward_funcs accuracy format length`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from hftune.data.strict_json import loads
from hftune.errors import ArgumentError, DataError
from hftune.logging import notice
from hftune.trainers.rewards.final_answer import candidates, marked
from hftune.trainers.rewards.same_answer import has_math_verify, same_answer

REFERENCES = ("answer", "solution", "ground_truth", "target", "reference_answer")
"""Columns that hold the right answer, in the order in which they are looked for."""

SHORT, LONG = 16, 256
"""Words between which `length` is 1."""

_THINKS = re.compile(r"^\s*<think>.+?</think>\s*\S.*$", re.DOTALL)
_THINKS_AND_ANSWERS = re.compile(r"^\s*<think>.+?</think>\s*<answer>.+?</answer>\s*$", re.DOTALL)


Function: TypeAlias = Callable[..., Sequence[float | None]]
BUILTIN: dict[str, Callable[[int], Function]] = {}
"""What `--reward_funcs` takes by name; each is given the tokens that an answer may have at most."""


def reward(name: str) -> Callable[[Function], Function]:
    """Enter a function under the name that the flag and the log call it."""

    def entered(function: Function) -> Function:
        function.__name__ = name
        BUILTIN[name] = lambda longest: function
        return function

    return entered


@reward("accuracy")
def accuracy(completions: list[Any], **columns: Any) -> list[float | None]:
    """1 where the final answer of a completion is the right one, else 0; None where no right answer is known.

    The right answer is in a column of `REFERENCES`, as it is written or as a solution whose final answer is marked; of
    several texts each is right. With the package math-verify expressions are compared as mathematics; without it only
    what is certainly equal counts (`same_answer`), and a notice says so.

    Raises:
        ArgumentError: The data have none of these columns.
    """
    found = [columns[name] for name in REFERENCES if columns.get(name) is not None]
    # Not a reward of 0: training would continue, and learn nothing.
    if not found:
        raise ArgumentError(
            f"no record has a right answer: looked for {', '.join(REFERENCES)}",
            place="--reward_funcs accuracy",
            fix='add it to the records, as in {"prompt": ..., "answer": "42"}',
        )
    if not has_math_verify():
        notice(
            "accuracy: without math-verify only answers that are certainly equal count (texts, numbers, lists), not "
            r"\sqrt{8} for 2\sqrt{2}; pip install 'hftune[math]' for more"
        )
    # Of each record the first that it has: records of several sources may call it otherwise.
    rights = [next((right for right in given if right is not None), None) for given in zip(*found, strict=True)]
    return [
        None if right is None else float(_is_right(right, text))
        for right, text in zip(rights, map(text_of, completions), strict=True)
    ]


def _is_right(right: Any, text: str) -> bool:
    return any(same_answer(one, given) for one in _right_answers(right) for given in candidates(text))


def _right_answers(right: Any) -> list[str]:
    """The right answers of a record: texts of a list are different ways to be right, numbers of a list one answer."""
    if isinstance(right, str) and right.startswith('["'):
        # Skywork-OR1 and others write a list into a text.
        with suppress(DataError):
            right = loads(right.encode())
    if not isinstance(right, list | tuple):
        return [marked(str(right))]
    whole = ", ".join(map(str, right))
    return [*map(marked, right), whole] if all(isinstance(one, str) for one in right) else [f"[{whole}]", whole]


@reward("format")
def follows_format(completions: list[Any], prompts: Sequence[Any] = (), **columns: Any) -> list[float]:
    """1 where a completion is <think>...</think> and then an answer, else 0.

    The answer stands in <answer>...</answer> where the prompt asks for these tags (`--defaults medicalgpt` does).
    """
    asks = [asks_for_tags(prompt) for prompt in prompts] or [False] * len(completions)
    found = []
    for text, tags in zip(map(text_of, completions), asks, strict=True):
        pattern = _THINKS_AND_ANSWERS if tags else _THINKS
        found.append(float(pattern.match(text) is not None and text.count("<think>") == 1))
    return found


def asks_for_tags(prompt: Any) -> bool:
    """Whether a prompt, as text or messages, tells the policy to write <answer> tags."""
    said = [prompt] if isinstance(prompt, str) else [str(message.get("content") or "") for message in prompt]
    return any("<answer>" in text and "</answer>" in text for text in said)


@reward("length")
def fits_length(completions: list[Any], **columns: Any) -> list[float]:
    """1 from 16 to 256 words, falling to 0 in proportion outside: at 0 words, and at twice 256."""
    rewards = []
    for text in map(text_of, completions):
        words = len(text.split())
        # Slopes and not steps: an answer that is nearly right gets nearly all.
        too_short, too_long = words / SHORT, 2.0 - words / LONG
        rewards.append(max(0.0, min(1.0, too_short, too_long)))
    return rewards


def overlong_penalty(longest: int) -> Callable[..., list[float]]:
    """DAPO's soft penalty of long answers (arXiv:2503.14476, eq. 13), from 0 to -1 over the last fifth of the room.

    Args:
        longest: Tokens of an answer at most; one that is cut there gets -1.
    """
    # The paper's cache is 4,096 of 20,480 tokens.
    room = max(1, longest // 5)

    def overlong(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        return [min(0.0, (longest - room - len(ids)) / room) for ids in completion_ids]

    return overlong


BUILTIN["overlong"] = overlong_penalty


def text_of(completion: Any) -> str:
    """A completion as text: its last message where it is a conversation."""
    return completion if isinstance(completion, str) else str(completion[-1].get("content") or "")
