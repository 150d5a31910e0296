"""Rewards that need no model: verifiable answers, a format, a length. `--reward_funcs accuracy format length`."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from typing import Any

from hftune.errors import ArgumentError
from hftune.logging import notice

REFERENCES = ("answer", "solution", "ground_truth", "target", "reference_answer")
"""Columns that hold the right answer, in the order in which they are looked for."""

SHORT, LONG = 16, 256
"""Words between which `length` is 1."""

_THINKS = re.compile(r"^\s*<think>.+?</think>\s*\S.*$", re.DOTALL)
_THINKS_AND_ANSWERS = re.compile(r"^\s*<think>.+?</think>\s*<answer>.+?</answer>\s*$", re.DOTALL)
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?")
_TAGGED = (re.compile(r"<answer>(.*?)</answer>", re.DOTALL), re.compile(r"####\s*(.+)"))


def accuracy(completions: list[Any], **columns: Any) -> list[float | None]:
    """1 where the final answer of a completion is the right one, else 0; None where no right answer is known.

    The right answer is in a column of `REFERENCES`; of a worked solution its final answer counts. With the package
    math-verify two expressions are compared as mathematics (1/2 is 0.5); without it as text, once spaces, thousands
    separators and the like are gone, numbers by their value.

    Raises:
        ArgumentError: The data have none of these columns.
    """
    column = next((name for name in REFERENCES if columns.get(name) is not None), None)
    # Not a reward of 0: training would continue, and learn nothing.
    if column is None:
        raise ArgumentError(
            f"no record has a right answer: looked for {', '.join(REFERENCES)}",
            place="--reward_funcs accuracy",
            fix='add it to the records, as in {"prompt": ..., "answer": "42"}',
        )
    equal = _mathematically if _has_math_verify() else _literally
    return [
        None if right is None else float(equal(str(right), text))
        for right, text in zip(columns[column], map(text_of, completions), strict=True)
    ]


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


follows_format.__name__, fits_length.__name__ = "format", "length"  # what the log calls them


def builtin_reward(name: str, longest: int) -> Callable[..., Sequence[float | None]]:
    """The function of a name in `BUILTIN_REWARDS`; `longest`: tokens of an answer at most."""
    if name == "accuracy" and not _has_math_verify():
        notice("--reward_funcs accuracy: answers are compared as text and by number; pip install math-verify for more")
    functions: dict[str, Any] = {"accuracy": accuracy, "format": follows_format, "length": fits_length}
    functions["overlong"] = overlong_penalty(longest)
    return functions[name]


def text_of(completion: Any) -> str:
    """A completion as text: its last message where it is a conversation."""
    return completion if isinstance(completion, str) else str(completion[-1].get("content") or "")


def final_answer(text: str) -> str:
    r"""What a worked solution comes to: in \boxed{}, in <answer>, behind ####, else its last number, else all of it."""
    boxed = _boxed(text)
    if boxed is not None:
        return boxed
    for pattern in _TAGGED:
        if found := pattern.findall(text):
            return str(found[-1])
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else text


def _boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...}, braces inside it counted."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, first = 1, start + len("\\boxed{")
    for place in range(first, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[first:place]
    return None


def _literally(right: str, text: str) -> bool:
    wanted, given = _plain(final_answer(right)), _plain(final_answer(text))
    # 1/2 and 0.5 are the same; a number and a word are not.
    numbers = _value(wanted), _value(given)
    if None not in numbers:
        return numbers[0] == numbers[1]
    return wanted == given or (not _NUMBER.search(wanted) and _plain(right) == _plain(text))


def _plain(text: str) -> str:
    return re.sub(r"[\s$]|(?<=\d),(?=\d{3})|[.%]+$", "", text.strip()).casefold()


def _value(text: str) -> float | None:
    """A number, or a fraction of two."""
    top, _, bottom = text.partition("/")
    try:
        return float(top) / float(bottom or 1)
    except (ValueError, ZeroDivisionError):
        return None


def _has_math_verify() -> bool:
    return importlib.util.find_spec("math_verify") is not None


def _mathematically(right: str, text: str) -> bool:
    from math_verify import parse, verify

    # No timeouts: math-verify sets them by signals, which only the main thread may use.
    gold, given = (parse(_in_dollars(part), parsing_timeout=None) for part in (right, text))
    return bool(gold and given and verify(gold, given, timeout_seconds=None)) or _literally(right, text)


def _in_dollars(text: str) -> str:
    """A bare final answer as mathematics, which is what math-verify looks for."""
    return f"${final_answer(text)}$"
