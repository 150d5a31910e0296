"""Preference pairs to token ids: what DPO trains on, and reward modelling with more columns.

The prompt and both answers are tokenised as one text each, exactly as SFT does; the ids are then divided where the
answer starts. Where a token reaches over that border (a template without a clean end of its generation prompt), it
belongs to the answers, so that both share one prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hftune.arguments.preference import CUT
from hftune.data.preferences.truncation import Limits, Pair, limits_of, truncated_pair
from hftune.data.readers.files import Row
from hftune.data.records.labelled import Labelled
from hftune.data.records.messages import Message
from hftune.data.records.preferences import Preference, to_preference
from hftune.data.templates.empty_thoughts import DROP, MASK, opened_thoughts
from hftune.data.templates.guarded_text import AnyEncoding
from hftune.data.templates.proposals import require_chat_template
from hftune.data.templates.rewritten import SPLIT
from hftune.data.templates.span_finder import SpanFinder
from hftune.data.templates.spans import Span, SpannedText
from hftune.data.templates.turns import common_start
from hftune.data.tokenizing.counts import Counts, require_fast
from hftune.data.tokenizing.encoder import IDS, Encoder, Keep, keep_in_memory
from hftune.data.tokenizing.labels import tokens_of
from hftune.data.tokenizing.prefixes import PrefixEncoder
from hftune.errors import DataError
from hftune.logging import notice

if TYPE_CHECKING:
    from hftune.arguments.preference import DPOArguments

_THOUGHT = "HFTUNE7THOUGHT"
"""Stands for a thought, to see what a template writes around one."""

SAME = "chosen and rejected are equal after truncation"


COUNT_COLUMNS = {"length": pa.int32(), "trained": pa.int32()}


@dataclass(slots=True)
class PairText:
    """Prompt with each answer as text, in which the answer is the one span."""

    chosen: SpannedText
    rejected: SpannedText
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

    schema = pa.schema({"prompt_ids": IDS, "chosen_ids": IDS, "rejected_ids": IDS, **COUNT_COLUMNS})
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
        borders_in_text: str = "split",
        empty_thoughts: str = MASK,
        rewritten: str = SPLIT,
    ) -> None:
        self.tokenizer, self.offset = tokenizer, offset
        if offset:
            # On the instance: the class's schema is shared by encoders without offsets.
            self.schema = self.schema.append(pa.field("margin", pa.float32()))
        self.limits = Limits(max_length, max_prompt_length, max_completion_length, too_long, max_characters)
        require_fast(tokenizer)
        require_chat_template(tokenizer)
        self.finder = SpanFinder(
            tokenizer,
            last_turn_only=True,
            borders_in_text=borders_in_text,
            empty_thoughts=empty_thoughts,
            rewritten=rewritten,
        )
        self.encodings = PrefixEncoder(tokenizer, None)

    @classmethod
    def from_arguments(cls, tokenizer: PreTrainedTokenizerBase, args: DPOArguments) -> PairEncoder:
        """The encoder that the flags of run_dpo.py ask for."""
        return cls(
            tokenizer,
            **limits_of(args),
            offset=bool(getattr(args, "offset_alpha", 0.0)),
            borders_in_text=args.borders_in_text,
            empty_thoughts=args.empty_thoughts,
            rewritten=args.rewritten_turns,
        )

    def settings(self) -> dict[str, Any]:
        """For the fingerprint."""
        about = {
            "encoder": type(self).__name__,
            "limits": str(self.limits),
            "borders_in_text": self.finder.guard.mode,
            "empty_thoughts": self.finder.empty_thoughts,
            "rewritten_turns": self.finder.rewritten,
        }
        return about | ({"offset": True} if self.offset else {})

    def parse(self, row: Row) -> PairText:
        """The texts of a row and its answers' spans."""
        preference = to_preference(row)
        self.finder.render.reads.note_tools(preference.tools, row.origin)
        if self.offset and preference.margin is not None and preference.margin <= 0:
            raise DataError(
                f"the chosen answer's score is not above the rejected one's (difference {preference.margin:g})",
                place=preference.origin,
                fix="Fix the scores, or leave out --offset_alpha.",
                kind="scores that do not agree",
            )
        sides = [answer_text(preference, answer, self.finder) for answer in (preference.chosen, preference.rejected)]
        return self.pair_of(preference, *sides)

    def pair_of(self, preference: Preference, chosen: SpannedText, rejected: SpannedText) -> PairText:
        """Both texts, if they write the prompt in the same way."""
        if _prompt(chosen) != _prompt(rejected) and self.finder.empty_thoughts != DROP:
            chosen, rejected = self.behind_one_prompt(preference, chosen, rejected)
        prompt, other = _prompt(chosen), _prompt(rejected)
        # Both sides are conditioned on one prompt; a template that adds a line for calls to one of them breaks that.
        if prompt != other:
            raise DataError(
                "the chat template writes the prompt differently before the two answers",
                place=preference.origin,
                fix="Remove reasoning and function calls from the answers, or give another --chat_template.",
                kind="prompt written in two ways",
            )
        answers = max(answer_characters(answer) for answer in (preference.chosen, preference.rejected))
        return PairText(chosen, rejected, preference.margin, characters=len(prompt) + answers)

    def behind_one_prompt(
        self, preference: Preference, chosen: SpannedText, rejected: SpannedText
    ) -> tuple[SpannedText, SpannedText]:
        """Both texts behind the prompt of the answer with thoughts, where the other one has none; else as they are."""
        asked, other = _prompt(chosen), _prompt(rejected)
        shared = common_start(asked, other)
        if (shared in (asked, other) and self.finder.empty_thoughts == MASK) or (
            # A score is of the conversation as the template writes it.
            self.to_the_end and opened_thoughts(shared)
        ):
            return _from(chosen, len(shared)), _from(rejected, len(shared))
        return (
            without_thought(preference, preference.chosen, other, self.finder) or chosen,
            without_thought(preference, preference.rejected, asked, self.finder) or rejected,
        )

    def encode(self, parsed: list[PairText], counts: Counts) -> dict[str, list[Any]]:
        """Ids of each pair within its limits."""
        pairs = self.pairs(parsed, counts)
        return {
            "prompt_ids": [pair.prompt for pair in pairs],
            "chosen_ids": [pair.chosen for pair in pairs],
            "rejected_ids": [pair.rejected for pair in pairs],
            **({"margin": [pair.margin for pair in pairs]} if self.offset else {}),
            **count_columns(pairs),
        }

    def finish(self, dataset: Dataset, keep: Keep = keep_in_memory) -> Dataset:
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
        lefts, rights = (
            self.encodings([said.text for said in side])
            for side in ([pair.chosen for pair in parsed], [pair.rejected for pair in parsed])
        )
        for text, (left, _), (right, _) in zip(parsed, lefts, rights, strict=True):
            counts.note_texts([text.chosen.text, text.rejected.text])
            chosen, first = self._divide(left, text.chosen)
            rejected, second = self._divide(right, text.rejected)
            # A token may reach from the prompt into the answer, and is another one for each answer then.
            shared = _common_length(chosen[:first], rejected[:second])
            pair = Pair(chosen[:shared], chosen[shared:], rejected[shared:], text.margin, text.source)
            # Counted apart first: a pair that turns out equal must not count as truncated.
            seen = Counts()
            found = truncated_pair(pair, self.limits, text.characters, seen)
            # Equal after truncation: the loss would be a constant, and its gradient nothing.
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

    def _divide(self, encoding: AnyEncoding, said: SpannedText) -> tuple[np.ndarray, int]:
        """Ids up to the end of the answer, or of the text, and how many of them come before the answer."""
        ids = np.array(encoding.ids, dtype=np.int32)
        first, end = tokens_of(encoding, said.spans[0], len(said.text))
        return (ids if self.to_the_end else ids[:end]), first


def _prompt(said: SpannedText) -> str:
    """What comes before the answer."""
    return said.text[: said.spans[0].start]


def without_thought(
    preference: Preference, answer: list[Message], prompt: str, finder: SpanFinder
) -> SpannedText | None:
    """The text of an answer that ends the thought, which the prompt opens, at once, as no template writes it.

    Nemotron 3 asks with `<think>` and a line break, and writes an answer without a thought behind `<think></think>`,
    which is asked with thinking off. Of two answers to one question one may think and one not.

    Args:
        prompt: Of the other answer.

    Returns:
        None where the prompt opens no thought, or the template asks for thoughts in another way.
    """
    if not opened_thoughts(prompt):
        return None
    try:
        said = answer_text(preference, [{**answer[-1], "reasoning_content": _THOUGHT}], finder)
    except DataError:
        return None
    before, found, after = said.text.partition(_THOUGHT)
    if not found or before.rstrip() != prompt.rstrip():
        return None
    # Right behind the prompt, so that its tokens are those that inference gives.
    text, behind = prompt + after.lstrip(), len(said.text) - said.spans[0].end
    return SpannedText(text, [Span(len(prompt), len(text) - behind)])


def _from(said: SpannedText, start: int) -> SpannedText:
    """The text with an answer that begins at `start`."""
    (span,) = said.spans
    return SpannedText(said.text, [Span(start, span.end, span.weight)])


def count_columns(pairs: list[Pair]) -> dict[str, list[Any]]:
    """The columns of `COUNT_COLUMNS`."""
    return {
        "length": [pair.length for pair in pairs],
        "trained": [len(pair.chosen) + len(pair.rejected) for pair in pairs],
    }


def answer_characters(answer: list[Message]) -> int:
    """Characters of an answer as it was given."""
    return sum(len(str(message.get("content") or "")) for message in answer)


def answer_text(preference: Preference | Labelled, answer: list[Message], finder: SpanFinder) -> SpannedText:
    """The text of prompt and answer, whose one span is the answer, which is one turn.

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
        found = finder(preference.prompt + answer, preference.tools, preference.template_arguments)
    except DataError as error:
        raise error.at(preference.origin) from error
    if not found.spans:
        raise DataError(
            'an answer with "weight" 0', place=preference.origin, fix="Remove the weight.", kind="answer of weight 0"
        )
    return found


def _common_length(left: np.ndarray, right: np.ndarray) -> int:
    """How many tokens two arrays share at their start."""
    shorter = min(len(left), len(right))
    different = np.flatnonzero(left[:shorter] != right[:shorter])
    return int(different[0]) if len(different) else shorter
