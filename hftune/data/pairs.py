"""Preference pairs and prompts to token ids: what DPO, reward modelling and RL train on.

The prompt and both answers are tokenised as one text each, exactly as SFT does; the ids are then divided where the
answer starts. Where a token reaches over that border (a template without a clean end of its generation prompt), it
belongs to the answers, so that both share one prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hftune.data.batches import BATCH
from hftune.data.chat import render, render_with_spans, require_chat_template
from hftune.data.encoding import (
    Counts,
    Ids,
    all_dropped,
    check_length,
    encode_with_offsets,
    overlaps,
    require_fast,
    to_dataset,
)
from hftune.data.messages import Message
from hftune.data.schemas import Preference, Prompt, to_preference, to_prompt
from hftune.data.sources import Row
from hftune.errors import DataError
from hftune.logging import notice

SAME = "chosen and rejected are equal after truncation"
LONG_PROMPT = "prompt longer than max_prompt_length"


@dataclass(frozen=True, slots=True)
class Limits:
    """Lengths in tokens; None is no limit."""

    total: int
    prompt: int | None
    completion: int | None

    def __post_init__(self) -> None:
        check_length(self.total, "--max_length")
        check_length(self.prompt, "--max_prompt_length", 1)
        check_length(self.completion, "--max_completion_length", 1)


@dataclass(slots=True)
class Pair:
    """Token ids of one preference."""

    prompt: Ids
    chosen: Ids
    rejected: Ids
    margin: float | None


def tokenize_pairs(
    rows: list[Row],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    max_prompt_length: int | None = None,
    max_completion_length: int | None = None,
) -> tuple[Dataset, Counts]:
    """Preference pairs for DPO.

    A prompt loses its start, an answer its end. Where both do not fit in `max_length`, the prompt gives way first, down
    to half of `max_length`; then the answers, down to one token. Pairs equal after that are dropped and counted.

    Returns:
        Columns prompt_ids, chosen_ids and rejected_ids; an untruncated answer ends with the template's terminator.
        And `length`, tokens of the longer side, for `--train_sampling_strategy group_by_length`.

    Raises:
        DataError: A record that cannot be read or rendered, or nothing left.
    """
    limits = Limits(max_length, max_prompt_length, max_completion_length)
    pairs, counts = _pairs(rows, tokenizer, limits)
    counts.tokens = sum(2 * len(pair.prompt) + len(pair.chosen) + len(pair.rejected) for pair in pairs)
    columns = {
        "prompt_ids": [pair.prompt for pair in pairs],
        "chosen_ids": [pair.chosen for pair in pairs],
        "rejected_ids": [pair.rejected for pair in pairs],
    }
    return _with_lengths(to_dataset(columns), pairs), counts


def tokenize_reward_pairs(
    rows: list[Row],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    max_prompt_length: int | None = None,
    max_completion_length: int | None = None,
) -> tuple[Dataset, Counts]:
    """Preference pairs for a reward model, truncated as `tokenize_pairs` does.

    What a template writes after the terminator (ChatML's line break) stays: RL scores conversations as the template
    writes them, and the score is read at the last token.

    Returns:
        Columns chosen_ids and rejected_ids (prompt and answer), length, and margin (float) if any row has one.

    Raises:
        DataError: A record that cannot be read or rendered, or nothing left.
    """
    limits = Limits(max_length, max_prompt_length, max_completion_length)
    pairs, counts = _pairs(rows, tokenizer, limits, to_the_end=True)
    counts.tokens = sum(2 * len(pair.prompt) + len(pair.chosen) + len(pair.rejected) for pair in pairs)
    dataset = to_dataset(
        {
            "chosen_ids": [pair.prompt + pair.chosen for pair in pairs],
            "rejected_ids": [pair.prompt + pair.rejected for pair in pairs],
        }
    )
    dataset = _with_lengths(dataset, pairs)
    margins = [pair.margin for pair in pairs]
    missing = sum(margin is None for margin in margins)
    if missing == len(margins):
        return dataset, counts
    if missing:
        notice(f"{missing} of {len(margins)} pairs have no margin; 0.0 is used for them")
    return dataset.add_column("margin", [0.0 if margin is None else margin for margin in margins]), counts


def _with_lengths(dataset: Dataset, pairs: list[Pair]) -> Dataset:
    lengths = [len(pair.prompt) + max(len(pair.chosen), len(pair.rejected)) for pair in pairs]
    return dataset.add_column("length", lengths)


def _pairs(
    rows: list[Row], tokenizer: PreTrainedTokenizerBase, limits: Limits, *, to_the_end: bool = False
) -> tuple[list[Pair], Counts]:
    """Tokenise, truncate and count; `to_the_end` keeps what follows an answer's terminator."""
    require_fast(tokenizer)
    require_chat_template(tokenizer)
    counts, kept = Counts(rows=len(rows)), []
    for start in range(0, len(rows), BATCH):
        preferences = [to_preference(row) for row in rows[start : start + BATCH]]
        for pair in _encode_pairs(preferences, tokenizer, to_the_end):
            fitted = _fit(pair, limits)
            if fitted.chosen == fitted.rejected:
                counts.drop(SAME)
                continue
            counts.used += 1
            counts.truncated += fitted != pair
            counts.trained_tokens += len(fitted.chosen) + len(fitted.rejected)
            kept.append(fitted)
    if not kept:
        raise all_dropped(counts, "--max_length")
    return kept, counts


def _encode_pairs(
    preferences: list[Preference], tokenizer: PreTrainedTokenizerBase, to_the_end: bool
) -> Iterator[Pair]:
    """Token ids of each preference, untruncated."""
    rendered = [
        _answer_text(preference, answer, tokenizer)
        for preference in preferences
        for answer in (preference.chosen, preference.rejected)
    ]
    encoded = list(encode_with_offsets([text for text, _ in rendered], tokenizer))
    divided = [
        _divide(ids, offsets, span, to_the_end) for (ids, offsets), (_, span) in zip(encoded, rendered, strict=True)
    ]
    for index, preference in enumerate(preferences):
        (left, left_span), (right, right_span) = rendered[2 * index : 2 * index + 2]
        if left[: left_span[0]] != right[: right_span[0]]:
            raise DataError(
                "the chat template writes the prompt differently before the two answers",
                place=preference.origin,
                fix="Remove reasoning and function calls from the answers, or give another --chat_template.",
            )
        (chosen, first), (rejected, second) = divided[2 * index : 2 * index + 2]
        shared = _common_length(chosen[:first], rejected[:second])
        yield Pair(chosen[:shared], chosen[shared:], rejected[shared:], preference.margin)


def _answer_text(
    preference: Preference, answer: list[Message], tokenizer: PreTrainedTokenizerBase
) -> tuple[str, tuple[int, int]]:
    """The text of prompt and answer, and the span of the answer."""
    if len(answer) != 1:
        raise DataError(
            f"an answer of {len(answer)} turns; tool results and questions in it would be trained, too",
            place=preference.origin,
            fix="Move all turns that both answers share into the prompt, and keep the last one as the answer.",
        )
    try:
        text, spans = render_with_spans(preference.prompt + answer, tokenizer, preference.tools, last_turn_only=True)
    except DataError as error:
        raise DataError(error.cause, place=preference.origin, fix=error.fix) from error
    if not spans:
        raise DataError('an answer with "weight" 0', place=preference.origin, fix="Remove the weight.")
    return text, spans[0]


def _divide(ids: Ids, offsets: list[tuple[int, int]], span: tuple[int, int], to_the_end: bool) -> tuple[Ids, int]:
    """Ids up to the end of the answer, or of the text, and how many of them come before the answer."""
    inside = [index for index, offset in enumerate(offsets) if overlaps(offset, [span])]
    return ids if to_the_end else ids[: inside[-1] + 1], inside[0]


def _common_length(left: Ids, right: Ids) -> int:
    """How many tokens two lists share at their start."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(left), len(right)))


def _fit(pair: Pair, limits: Limits) -> Pair:
    """The pair within its limits; the same pair if it fits."""
    prompt = pair.prompt[-limits.prompt :] if limits.prompt else pair.prompt
    longest = max(len(pair.chosen), len(pair.rejected))
    answer = min(longest, limits.completion) if limits.completion else longest
    # At least one token of the prompt stays: the first token of an answer needs one before it to be predicted.
    least = max(1, limits.total // 2)
    kept = min(len(prompt), max(least, limits.total - answer))
    room = min(answer, limits.total - kept)
    return Pair(prompt[len(prompt) - kept :], pair.chosen[:room], pair.rejected[:room], pair.margin)


def prompts_dataset(
    rows: list[Row], tokenizer: PreTrainedTokenizerBase, *, max_prompt_length: int | None
) -> tuple[Dataset, Counts]:
    """Prompts for RL. A prompt that is too long is dropped and counted: cut messages would ask something else.

    Args:
        max_prompt_length: Tokens of the rendered prompt with its generation prompt; None is no limit.

    Returns:
        Column prompt (a list of messages), and every other column that all rows have.

    Raises:
        DataError: A row without a prompt, a column of mixed types, or nothing left.
    """
    check_length(max_prompt_length, "--max_prompt_length", 1)
    require_chat_template(tokenizer)
    counts, kept = Counts(rows=len(rows)), []
    for start in range(0, len(rows), BATCH):
        prompts = [to_prompt(row) for row in rows[start : start + BATCH]]
        texts = [_prompt_text(prompt, tokenizer) for prompt in prompts]
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        for prompt, ids in zip(prompts, encoded, strict=True):
            if max_prompt_length is not None and len(ids) > max_prompt_length:
                counts.drop(LONG_PROMPT)
                continue
            counts.used += 1
            counts.tokens += len(ids)
            kept.append(prompt)
    if not kept:
        raise all_dropped(counts, "--max_prompt_length")
    return _prompt_columns(kept), counts


def _prompt_text(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> str:
    """The prompt as the model will see it."""
    try:
        return render(prompt.messages, tokenizer, add_generation_prompt=True)
    except DataError as error:
        raise DataError(error.cause, place=prompt.origin, fix=error.fix) from error


def _prompt_columns(prompts: list[Prompt]) -> Dataset:
    """The prompts and the columns that all of them have."""
    names = list(dict.fromkeys(name for prompt in prompts for name in prompt.extra))
    shared = [name for name in names if all(name in prompt.extra for prompt in prompts)]
    if len(shared) < len(names):
        left_out = ", ".join(name for name in names if name not in shared)
        notice(f"columns that not every row has are left out: {left_out}")
    columns: dict[str, list[Any]] = {"prompt": [prompt.messages for prompt in prompts]}
    columns |= {name: [prompt.extra[name] for prompt in prompts] for name in shared}
    for name, values in columns.items():
        try:
            pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            kinds = sorted({type(value).__name__ for value in values})
            raise DataError(
                f'the column "{name}" mixes types ({", ".join(kinds)}): {error}',
                place=_first_other(prompts, values),
                fix=f'Write all values of "{name}" in the same way, for example as strings.',
            ) from error
    return Dataset.from_dict(columns)


def _first_other(prompts: list[Prompt], values: list[Any]) -> str:
    """The origin of the first value whose type is not that of the first one."""
    pairs = zip(prompts, values, strict=True)
    return next((prompt.origin for prompt, value in pairs if type(value) is not type(values[0])), prompts[0].origin)
