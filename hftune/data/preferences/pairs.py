"""Preference pairs and prompts to token ids: what DPO, reward modelling and RL train on.

The prompt and both answers are tokenised as one text each, exactly as SFT does; the ids are then divided where the
answer starts. Where a token reaches over that border (a template without a clean end of its generation prompt), it
belongs to the answers, so that both share one prompt.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, Json
from datasets.features.features import generate_from_arrow_type
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from hftune.arguments.lengths import CUT
from hftune.data.preferences.truncation import Limits, Pair, fitted, limits_of
from hftune.data.readers.files import Row
from hftune.data.records.messages import Message
from hftune.data.records.schemas import Labelled, Preference, Prompt, to_preference, to_prompt
from hftune.data.templates.choice import require_chat_template
from hftune.data.templates.rendering import Renderer
from hftune.data.templates.respelled_tokenizer import token_ids
from hftune.data.templates.spans import Span, SpanFinder
from hftune.data.templates.turn_token_guard import Borders, count_borders
from hftune.data.tokenizing.counts import Counts, check_length, overlaps, require_fast, widened
from hftune.data.tokenizing.encoder import IDS, Encoder
from hftune.data.tokenizing.prefixes import PrefixEncoder, token_span
from hftune.errors import DataError
from hftune.logging import notice

if TYPE_CHECKING:
    from hftune.arguments import DPOArguments, GRPOArguments, RLOOArguments, RMArguments

SAME = "chosen and rejected are equal after truncation"
LONG_PROMPT = "prompt longer than max_prompt_length"

_OFFERED = ("tools", "functions")

COUNTED = {"length": pa.int32(), "trained": pa.int32()}


@dataclass(slots=True)
class PairText:
    """Prompt with each answer as text, and where the answer is in it."""

    chosen: str
    chosen_span: Span
    rejected: str
    rejected_span: Span
    margin: float | None
    source: str = ""
    characters: int = 0
    """Those of the prompt as it is rendered and of the longer answer as it was given."""


class PairEncoder(Encoder):
    """Preference pairs for DPO.

    A prompt loses its start, an answer its end, or the pair is dropped, as `too_long` says (`truncation.py`). Pairs
    equal after that are dropped and counted.

    Columns prompt_ids, chosen_ids, rejected_ids (and margin, with `offset`); an untruncated answer ends with the
    template's terminator. And `length`, tokens of the longer side, for `--train_sampling_strategy group_by_length`.

    Raises:
        ArgumentError: A length that is too small.
        DataError: A tokenizer without character offsets, or without a chat template.
    """

    schema = pa.schema({"prompt_ids": IDS, "chosen_ids": IDS, "rejected_ids": IDS, **COUNTED})
    length_flag = "--max_length, or --max_prompt_length with --max_completion_length"
    dummy_kind = "preference"
    to_the_end = False
    """Keep what follows an answer's terminator."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int,
        max_prompt_length: int | None = None,
        max_completion_length: int | None = None,
        too_long: str = CUT,
        max_characters: int | None = None,
        offset: bool = False,
        borders: str = "split",
    ) -> None:
        self.tokenizer, self.offset = tokenizer, offset
        if offset:
            self.schema = self.schema.append(pa.field("margin", pa.float32()))
        self.limits = Limits(max_length, max_prompt_length, max_completion_length, too_long, max_characters)
        require_fast(tokenizer)
        require_chat_template(tokenizer)
        self.finder = SpanFinder(tokenizer, last_turn_only=True, borders=borders)
        self.encodings = PrefixEncoder(tokenizer, None)

    @classmethod
    def from_arguments(cls, tokenizer: PreTrainedTokenizerBase, args: RMArguments | DPOArguments) -> PairEncoder:
        """As the flags of run_rm.py and run_dpo.py say."""
        return cls(
            tokenizer,
            **limits_of(args),
            offset=bool(getattr(args, "offset_alpha", 0.0)),
            borders=args.borders_in_text,
        )

    def settings(self) -> dict[str, Any]:
        """For the fingerprint."""
        about = {
            "encoder": type(self).__name__,
            "limits": str(self.limits),
            "borders_in_text": self.finder.borders.mode,
        }
        return about | ({"offset": True} if self.offset else {})

    def parse(self, row: Row) -> PairText:
        """The texts of a row and its answers' spans."""
        preference = to_preference(row)
        if self.offset and preference.margin is not None and preference.margin <= 0:
            raise DataError(
                f"the chosen answer's score is not above the rejected one's (difference {preference.margin:g})",
                place=preference.origin,
                fix="Mend the scores, or leave out --offset_alpha.",
                kind="scores that do not agree",
            )
        sides = [answer_text(preference, answer, self.finder) for answer in (preference.chosen, preference.rejected)]
        return self.pair_of(preference, *sides)

    def pair_of(self, preference: Preference, chosen: tuple[str, Span], rejected: tuple[str, Span]) -> PairText:
        """Both texts, if they write the prompt in the same way."""
        (left, left_span), (right, right_span) = chosen, rejected
        if left[: left_span[0]] != right[: right_span[0]]:
            raise DataError(
                "the chat template writes the prompt differently before the two answers",
                place=preference.origin,
                fix="Remove reasoning and function calls from the answers, or give another --chat_template.",
                kind="prompt written in two ways",
            )
        answers = max(written(answer) for answer in (preference.chosen, preference.rejected))
        return PairText(left, left_span, right, right_span, preference.margin, characters=left_span[0] + answers)

    def encode(self, parsed: list[PairText], counts: Counts) -> dict[str, list[Any]]:
        """Ids of each pair within its limits."""
        pairs = self.pairs(parsed, counts)
        return {
            "prompt_ids": [pair.prompt for pair in pairs],
            "chosen_ids": [pair.chosen for pair in pairs],
            "rejected_ids": [pair.rejected for pair in pairs],
            **({"margin": [pair.margin for pair in pairs]} if self.offset else {}),
            **counted(pairs),
        }

    def finish(self, dataset: Dataset) -> Dataset:
        """With `offset`: pairs without scores get the difference 1, which is no offset."""
        margins = dataset["margin"][:] if self.offset else []
        missing = sum(margin is None for margin in margins)
        if not missing:
            return dataset
        if missing == len(margins):
            raise DataError(
                "no record has scores to take a difference of",
                place="--offset_alpha",
                fix="Give records with chosen_score and rejected_score, or margin; or leave the flag out.",
            )
        notice(f"{missing} of {len(margins)} pairs have no scores, and get no offset")
        filled = [1.0 if margin is None else margin for margin in margins]
        return dataset.remove_columns("margin").add_column("margin", filled)

    def pairs(self, parsed: list[PairText], counts: Counts) -> list[Pair]:
        """Tokenise, divide, truncate and count."""
        kept = []
        lefts, rights = (self.encodings([getattr(pair, side) for pair in parsed]) for side in ("chosen", "rejected"))
        for text, (left, _), (right, _) in zip(parsed, lefts, rights, strict=True):
            count_borders(counts, (text.chosen, text.rejected))
            chosen, first = self._divide(left, text.chosen_span, len(text.chosen))
            rejected, second = self._divide(right, text.rejected_span, len(text.rejected))
            shared = _common_length(chosen[:first], rejected[:second])
            pair = Pair(chosen[:shared], chosen[shared:], rejected[shared:], text.margin, text.source)
            seen = Counts()
            found = fitted(pair, self.limits, text.characters, seen)
            if found is not None and np.array_equal(found.chosen, found.rejected):
                found, seen = None, Counts(dropped={SAME: 1})
            counts.add(seen)
            if found is None:
                continue
            counts.used += 1
            counts.tokens += 2 * len(found.prompt) + len(found.chosen) + len(found.rejected)
            counts.trained_tokens += len(found.chosen) + len(found.rejected)
            kept.append(found)
        return kept

    def _divide(self, encoding: Encoding, span: Span, characters: int) -> tuple[np.ndarray, int]:
        """Ids up to the end of the answer, or of the text, and how many of them come before the answer."""
        ids = np.array(encoding.ids, dtype=np.int32)
        found = token_span(encoding, *span, characters)
        if found is None:
            offsets = widened(encoding.offsets)
            inside = [index for index, offset in enumerate(offsets) if overlaps(offset, [span])]
            found = inside[0], inside[-1] + 1
        first, end = found
        return (ids if self.to_the_end else ids[:end]), first


def counted(pairs: list[Pair]) -> dict[str, list[Any]]:
    """The columns of `COUNTED`."""
    return {
        "length": [pair.length for pair in pairs],
        "trained": [len(pair.chosen) + len(pair.rejected) for pair in pairs],
    }


def written(answer: list[Message]) -> int:
    """Characters of an answer as it was given."""
    return sum(len(str(message.get("content") or "")) for message in answer)


def answer_text(preference: Preference | Labelled, answer: list[Message], finder: SpanFinder) -> tuple[str, Span]:
    """The text of prompt and answer, and the span of the answer, which is one turn.

    Raises:
        DataError: It is several turns, or has the weight 0.
    """
    if len(answer) != 1:
        raise DataError(
            f"an answer of {len(answer)} turns; tool results and questions in it would be trained, too",
            place=preference.origin,
            fix="Move all turns that both answers share into the prompt, and keep the last one as the answer.",
            kind="answer of several turns",
        )
    try:
        text, spans, _ = finder(preference.prompt + answer, preference.tools)
    except DataError as error:
        raise error.at(preference.origin) from error
    if not spans:
        raise DataError(
            'an answer with "weight" 0', place=preference.origin, fix="Remove the weight.", kind="answer of weight 0"
        )
    return text, spans[0]


def _common_length(left: np.ndarray, right: np.ndarray) -> int:
    """How many tokens two arrays share at their start."""
    shorter = min(len(left), len(right))
    different = np.flatnonzero(left[:shorter] != right[:shorter])
    return int(different[0]) if len(different) else shorter


class PromptEncoder(Encoder):
    """Prompts for RL. A prompt that is too long is dropped and counted: cut messages would ask something else.

    Columns prompt (a list of messages), and every other column that all rows have.

    Args:
        max_prompt_length: Tokens of the rendered prompt with its generation prompt; None is no limit.
        system_prompt: The system message of prompts that have none of their own.
        borders: What becomes of turn borders in contents, a mode of `Borders`.
    """

    # Which columns there are is known when all rows are read; until then each travels as JSON.
    schema = pa.schema({"record": pa.string(), "origin": pa.string()})
    length_flag = "--max_prompt_length"
    dummy_kind = "prompt"

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_prompt_length: int | None,
        system_prompt: str | None = None,
        borders: str = "split",
    ) -> None:
        check_length(max_prompt_length, "--max_prompt_length", 1)
        require_chat_template(tokenizer)
        self.tokenizer, self.max_prompt_length, self.system_prompt = tokenizer, max_prompt_length, system_prompt
        self.render = Renderer(tokenizer)
        self.borders = Borders(tokenizer, borders, self.render)

    @classmethod
    def from_arguments(cls, tokenizer: PreTrainedTokenizerBase, args: GRPOArguments | RLOOArguments) -> PromptEncoder:
        """As the flags of run_rl.py say."""
        return cls(
            tokenizer,
            max_prompt_length=args.max_prompt_length,
            system_prompt=args.system_prompt,
            borders=args.borders_in_text,
        )

    def settings(self) -> dict[str, Any]:
        """For the fingerprint."""
        about = {
            "encoder": "prompts",
            "max_prompt_length": self.max_prompt_length,
            "borders_in_text": self.borders.mode,
        }
        return about | ({} if self.system_prompt is None else {"system_prompt": self.system_prompt})

    def parse(self, row: Row) -> tuple[Prompt, str]:
        """The prompt of a row, and its text as the model will see it."""
        prompt = to_prompt(row)
        if self.system_prompt is not None and prompt.messages[0]["role"] != "system":
            prompt.messages.insert(0, {"role": "system", "content": self.system_prompt})
        try:
            return prompt, self.borders.text(self.render, prompt.messages, add_generation_prompt=True)
        except DataError as error:
            raise error.at(prompt.origin) from error

    def encode(self, parsed: list[tuple[Prompt, str]], counts: Counts) -> dict[str, list[Any]]:
        """Each prompt as JSON."""
        columns: dict[str, list[Any]] = {"record": [], "origin": []}
        if not parsed:  # a chunk of bad records; transformers does not tokenise no text
            return columns
        texts = [text for _, text in parsed]
        encoded = token_ids(self.tokenizer, texts, add_special_tokens=False)
        for (prompt, text), ids in zip(parsed, encoded, strict=True):
            count_borders(counts, [text])
            if self.max_prompt_length is not None and len(ids) > self.max_prompt_length:
                counts.drop(LONG_PROMPT, needs=len(ids))
                continue
            counts.used += 1
            counts.tokens += len(ids)
            columns["record"].append(json.dumps([prompt.messages, prompt.extra], ensure_ascii=False, default=str))
            columns["origin"].append(prompt.origin)
        return columns

    def finish(self, dataset: Dataset) -> Dataset:
        """The columns that all prompts have."""
        pairs = zip(dataset["record"][:], dataset["origin"][:], strict=True)
        read = ((json.loads(record), origin) for record, origin in pairs)
        return _prompt_columns([Prompt(messages, extra, origin) for (messages, extra), origin in read])


def _prompt_columns(prompts: list[Prompt]) -> Dataset:
    """The prompts and the columns that all of them have."""
    names = list(dict.fromkeys(name for prompt in prompts for name in prompt.extra))
    shared = [name for name in names if all(name in prompt.extra for prompt in prompts)]
    if len(shared) < len(names):
        left_out = ", ".join(name for name in names if name not in shared)
        notice(f"columns that not every row has are left out: {left_out}")
    if offered := sum(any(prompt.extra.get(name) for name in _OFFERED) for prompt in prompts):
        notice(
            f"{offered} of {len(prompts)} prompts offer tools, which the model is not shown: in RL it calls functions "
            "of --tools; reward functions get what all records have"
        )
    columns: dict[str, list[Any]] = {"prompt": [prompt.messages for prompt in prompts]}
    columns |= {name: [prompt.extra[name] for prompt in prompts] for name in shared}
    return Dataset.from_dict(columns, features=Features({name: _feature(values) for name, values in columns.items()}))


def _feature(values: list[Any]) -> Any:
    """How a column is kept: as Arrow infers it where all values are texts, or numbers, or the like; else as JSON.

    Arrow has one type a column. Objects with other keys (arguments of tools) would get each other's keys, with nulls,
    and values of other types would be refused.
    """
    if any(isinstance(value, (dict, list)) for value in values):
        return Json()
    try:
        return generate_from_arrow_type(pa.array(values).type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return Json()
