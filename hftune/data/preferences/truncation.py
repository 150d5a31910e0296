"""Prompts and answers within their lengths: what is cut, and what is dropped, as `--too_long` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hftune.arguments.preference import CUT, CUT_ANSWER, CUT_PROMPT, DROP, PairLengths
from hftune.data.tokenizing.counts import Counts, check_length

TOO_LONG = "longer than its lengths"
TOO_LONG_IN_CHARACTERS = "more characters than its lengths"


@dataclass(frozen=True, slots=True)
class Limits:
    """Lengths in tokens; None is no limit.

    Args:
        total: Of a prompt with an answer.
        prompt: Of the prompt alone.
        completion: Of an answer alone.
        too_long: What becomes of what is longer, a value of `--too_long`.
        characters: Of a prompt with an answer; more of them drop the record, and fewer let its answer be cut.
    """

    total: int
    prompt: int | None = None
    completion: int | None = None
    too_long: str = CUT
    characters: int | None = None

    def __post_init__(self) -> None:
        check_length(self.total, "--max_length")
        check_length(self.prompt, "--max_prompt_length", 1)
        check_length(self.completion, "--max_completion_length", 1)

    @property
    def cuts(self) -> str:
        """What becomes of too many tokens; records that pass by their characters lose the answer's end."""
        return CUT_ANSWER if self.characters is not None else self.too_long


@dataclass(slots=True)
class Pair:
    """Token ids of one preference, int32."""

    prompt: np.ndarray
    chosen: np.ndarray
    rejected: np.ndarray
    margin: float | None
    source: str = ""

    @property
    def answer(self) -> int:
        """Tokens of the longer answer."""
        return max(len(self.chosen), len(self.rejected))

    @property
    def length(self) -> int:
        """Tokens of the longer side."""
        return len(self.prompt) + self.answer


def limits_of(args: Any) -> dict[str, Any]:
    """The arguments of an encoder of pairs that lengths are, from those of run_rm.py or run_dpo.py."""
    assert isinstance(args, PairLengths)
    prompt, completion = args.separate_limits
    return {
        "max_length": args.max_length,
        "max_prompt_length": prompt,
        "max_completion_length": completion,
        "too_long": args.too_long,
        "max_characters": args.most_characters,
    }


def truncated_pair(pair: Pair, limits: Limits, characters: int, counts: Counts) -> Pair | None:
    """The pair within its limits, None where it is dropped; counts what was cut, and each that was dropped.

    Args:
        characters: Those of the prompt with its longer answer.
    """
    if limits.characters is not None and characters > limits.characters:
        counts.drop(TOO_LONG_IN_CHARACTERS)
        return None
    found = _WAYS[limits.cuts](pair, limits)
    if found is None:
        counts.drop(TOO_LONG)
        return None
    counts.note_cut(prompt=len(found.prompt) < len(pair.prompt), answer=_is_cut(found, pair))
    return found


def _is_cut(found: Pair, pair: Pair) -> bool:
    return len(found.chosen) < len(pair.chosen) or len(found.rejected) < len(pair.rejected)


def _cut(pair: Pair, limits: Limits) -> Pair:
    """The prompt gives way first, down to half of the total; then the answers, down to one token."""
    prompt = _at_most(len(pair.prompt), limits.prompt)
    answer = _at_most(pair.answer, limits.completion)
    # At least one token of the prompt stays: the first token of an answer needs one before it to be predicted.
    least = max(1, limits.total // 2)
    # What the answers leave, but at least half.
    kept = min(prompt, max(least, limits.total - answer))
    return _with(pair, kept, min(answer, limits.total - kept))


def _cut_prompt(pair: Pair, limits: Limits) -> Pair | None:
    # One token of the prompt must stay: the first token of an answer needs one before it.
    if pair.answer > _at_most(limits.total - 1, limits.completion):
        return None
    return _with(pair, min(_at_most(len(pair.prompt), limits.prompt), limits.total - pair.answer), pair.answer)


def _cut_answer(pair: Pair, limits: Limits) -> Pair | None:
    if len(pair.prompt) > _at_most(limits.total - 1, limits.prompt):
        return None
    return _with(pair, len(pair.prompt), min(_at_most(pair.answer, limits.completion), limits.total - len(pair.prompt)))


def _whole(pair: Pair, limits: Limits) -> Pair | None:
    fits = len(pair.prompt) <= _at_most(limits.total, limits.prompt)
    return (
        pair
        if fits and pair.length <= limits.total and pair.answer <= _at_most(pair.answer, limits.completion)
        else None
    )


_WAYS = {CUT: _cut, CUT_PROMPT: _cut_prompt, CUT_ANSWER: _cut_answer, DROP: _whole}


def _at_most(number: int, limit: int | None) -> int:
    return number if limit is None else min(number, limit)


def _with(pair: Pair, prompt: int, answer: int) -> Pair:
    """The end of the prompt and the start of both answers, so many tokens of each."""
    # A prompt loses its beginning: its end is the question.
    kept = pair.prompt[len(pair.prompt) - prompt :]
    return Pair(kept, pair.chosen[:answer], pair.rejected[:answer], pair.margin, pair.source)
