"""Answers with a label, and mismatched answers: what KTO trains on.

KTO measures how far the policy is from the reference on answers to other prompts. Each record takes the answer of the
record half a data set away, so that the reference's numbers for it can be computed once as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hftune.arguments.preference import CUT, CUT_ANSWER, CUT_PROMPT, DROP, PairLengths
from hftune.data.compared_answers import Preference, to_preference
from hftune.data.counts import Counts
from hftune.data.encode import PrefixEncoder
from hftune.data.encoder import IDS, Encoder, Keep, keep_in_memory, lists_of
from hftune.data.files import Row
from hftune.data.mask import SPLIT, SpanFinder, tokens_of
from hftune.data.messages import Message
from hftune.data.records import Labelled, to_labelled
from hftune.data.rendering import opened_thoughts
from hftune.data.turn_tokens import AnyEncoding
from hftune.data.turns import MASK, Span, SpannedText, common_start
from hftune.errors import DataError
from hftune.logging import notice


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


@dataclass(slots=True)
class PairText:
    """Prompt with each answer as text, in which the answer is the one span: the better one first, or a single one."""

    sides: list[SpannedText]
    margin: float | None = None
    label: bool | None = None
    source: str = ""
    characters: int = 0
    """Those of the prompt as it is rendered and of the longer answer as it was given."""


@dataclass(slots=True)
class Pair:
    """Token ids of a prompt and its answers, int32, and what they are of."""

    prompt: np.ndarray
    answers: list[np.ndarray]
    text: PairText

    @property
    def answer(self) -> int:
        """Tokens of the longer answer."""
        return max(map(len, self.answers))

    @property
    def length(self) -> int:
        """Tokens of the longer side."""
        return len(self.prompt) + self.answer

    @property
    def trained(self) -> int:
        """Tokens of all answers."""
        return sum(map(len, self.answers))


def limits_of(args: PairLengths) -> Limits:
    """The lengths that the arguments of run_rm.py or run_dpo.py ask for."""
    return Limits(args.max_length, *args.separate_limits, args.too_long, args.most_characters)


def truncated_pair(pair: Pair, limits: Limits, counts: Counts) -> Pair | None:
    """The pair within its limits, None where it is dropped; counts what was cut, and each that was dropped."""
    if limits.characters is not None and pair.text.characters > limits.characters:
        counts.drop("more characters than its lengths")
        return None
    # Records that pass by their characters lose the answer's end.
    way = CUT_ANSWER if limits.characters is not None else limits.too_long
    kept = _kept(len(pair.prompt), pair.answer, limits, way)
    if kept is None:
        counts.drop("longer than its lengths")
        return None
    # A prompt loses its beginning: its end is the question.
    prompt = pair.prompt[len(pair.prompt) - kept[0] :]
    counts.note_cut(prompt=len(prompt) < len(pair.prompt), answer=kept[1] < pair.answer)
    return replace(pair, prompt=prompt, answers=[answer[: kept[1]] for answer in pair.answers])


def _kept(prompt: int, answer: int, limits: Limits, way: str) -> tuple[int, int] | None:
    """Tokens that are kept of a prompt and of its longer answer; None where the pair is dropped."""
    most_prompt = prompt if limits.prompt is None else min(prompt, limits.prompt)
    most_answer = answer if limits.completion is None else min(answer, limits.completion)
    # At least one token of the prompt stays: the first token of an answer needs one before it to be predicted.
    least = max(1, limits.total // 2) if way == CUT else 1
    if way in (CUT_PROMPT, DROP) and (most_answer < answer or answer > limits.total - 1):
        return None
    if way in (CUT_ANSWER, DROP) and (most_prompt < prompt or prompt > limits.total - 1):
        return None
    if way == DROP:
        return (prompt, answer) if prompt + answer <= limits.total else None
    # The prompt gives way first, down to half of the total; then the answers, down to one token.
    kept = prompt if way == CUT_ANSWER else min(most_prompt, max(least, limits.total - most_answer))
    return kept, min(most_answer, limits.total - kept)


if TYPE_CHECKING:
    from hftune.arguments.preference import DPOArguments


COUNT_COLUMNS = {"length": pa.int32(), "trained": pa.int32()}


class PairEncoder(Encoder):
    """Preference pairs for DPO.

    A prompt loses its start, an answer its end, or the pair is dropped, as `limits` says. Pairs
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
        self, tokenizer: PreTrainedTokenizerBase, *, limits: Limits, offset: bool = False, **masking: Any
    ) -> None:
        self.tokenizer, self.limits, self.offset = tokenizer, limits, offset
        if offset:
            # On the instance: the class's schema is shared by encoders without offsets.
            self.schema = self.schema.append(pa.field("margin", pa.float32()))
        self.finder = SpanFinder(tokenizer, last_turn_only=True, **{"rewritten": SPLIT, **masking})
        self.encodings = PrefixEncoder(tokenizer, None)

    @classmethod
    def from_arguments(cls, tokenizer: PreTrainedTokenizerBase, args: DPOArguments) -> PairEncoder:
        """The encoder that the flags of run_dpo.py ask for."""
        return cls(
            tokenizer,
            limits=limits_of(args),
            offset=bool(getattr(args, "offset_alpha", 0.0)),
            borders_in_text=args.borders_in_text,
            empty_thoughts=args.empty_thoughts,
            rewritten=args.rewritten_turns,
        )

    def settings(self) -> dict[str, Any]:
        """For the fingerprint."""
        own = {"encoder": type(self).__name__, "limits": str(self.limits)}
        return own | self.finder.settings() | ({"offset": True} if self.offset else {})

    def read(self, row: Row) -> PairText:
        """The texts of a row and its answers' spans."""
        preference = to_preference(row)
        self.finder.render.reads.note_tools(preference.tools)
        if self.offset and preference.margin is not None and preference.margin <= 0:
            raise DataError(
                f"the chosen answer's score is not above the rejected one's (difference {preference.margin:g})",
                fix="Fix the scores, or leave out --offset_alpha.",
                kind="scores that do not agree",
            )
        sides = [answer_text(preference, answer, self.finder) for answer in (preference.chosen, preference.rejected)]
        return self.pair_of(preference, *sides)

    def pair_of(self, preference: Preference, chosen: SpannedText, rejected: SpannedText) -> PairText:
        """Both texts, if they write the prompt in the same way."""
        prompt, other = _prompt(chosen), _prompt(rejected)
        # Of two answers to one question one may think and one not: the marks that only one of them has are its own.
        shared = prompt if prompt == other else common_start(prompt, other)
        masked = shared in (prompt, other) and self.finder.empty_thoughts == MASK
        # A score is of the conversation as the template writes it.
        if prompt != other and (masked or (self.to_the_end and opened_thoughts(shared))):
            chosen, rejected = _from(chosen, len(shared)), _from(rejected, len(shared))
            prompt = other = shared
        # Both sides are conditioned on one prompt; a template that adds a line for calls to one of them breaks that.
        if prompt != other:
            raise DataError(
                "the chat template writes the prompt differently before the two answers",
                fix="Remove reasoning and function calls from the answers, or give another --chat_template.",
                kind="prompt written in two ways",
            )
        answers = max(answer_characters(answer) for answer in (preference.chosen, preference.rejected))
        return PairText([chosen, rejected], preference.margin, characters=len(prompt) + answers)

    def encode(self, parsed: list[PairText], counts: Counts) -> dict[str, list[Any]]:
        """Ids of each pair within its limits."""
        pairs = self.pairs(parsed, counts)
        return {
            "prompt_ids": [pair.prompt for pair in pairs],
            "chosen_ids": [pair.answers[0] for pair in pairs],
            "rejected_ids": [pair.answers[1] for pair in pairs],
            **({"margin": [pair.text.margin for pair in pairs]} if self.offset else {}),
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
        encodings = iter(self.encodings([side.text for text in parsed for side in text.sides]))
        for text in parsed:
            counts.note_texts([side.text for side in text.sides])
            divided = [self._divide(next(encodings), side) for side in text.sides]
            # A token may reach from the prompt into the answer, and is another one for each answer then.
            prompts = [ids[:first] for ids, first in divided]
            shared = _common_length(prompts[0], prompts[-1])
            pair = Pair(prompts[0][:shared], [ids[shared:] for ids, _ in divided], text)
            # Counted apart first: a pair that turns out equal must not count as truncated.
            seen = Counts()
            found = truncated_pair(pair, self.limits, seen)
            # Equal after truncation: the loss would be a constant, and its gradient nothing.
            if found is not None and len(found.answers) == 2 and np.array_equal(found.answers[0], found.answers[1]):
                found, seen = None, Counts(dropped={"chosen and rejected are equal after truncation": 1})
            counts.add(seen)
            if found is None:
                continue
            counts.used += 1
            counts.tokens += len(found.answers) * len(found.prompt) + found.trained
            counts.trained_tokens += found.trained
            kept.append(found)
        return kept

    def _divide(self, encoding: AnyEncoding, said: SpannedText) -> tuple[np.ndarray, int]:
        """Ids up to the end of the answer, or of the text, and how many of them come before the answer."""
        ids = np.array(encoding.ids, dtype=np.int32)
        ((first, end),) = tokens_of(encoding, said.spans)
        return (ids if self.to_the_end else ids[:end]), first


def _prompt(said: SpannedText) -> str:
    """What comes before the answer."""
    return said.text[: said.spans[0].start]


def _from(said: SpannedText, start: int) -> SpannedText:
    """The text with an answer that begins at `start`."""
    (span,) = said.spans
    return SpannedText(said.text, [Span(start, span.end, span.weight)])


def count_columns(pairs: list[Pair]) -> dict[str, list[Any]]:
    """The columns of `COUNT_COLUMNS`."""
    return {"length": [pair.length for pair in pairs], "trained": [pair.trained for pair in pairs]}


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
            fix="Move all turns that both answers share into the prompt, and keep the last one as the answer.",
            kind="answer of several turns",
        )
    found = finder(preference.prompt + answer, preference.tools, preference.template_arguments)
    if not found.spans:
        raise DataError('an answer with "weight" 0', fix="Remove the weight.", kind="answer of weight 0")
    return found


def _common_length(left: np.ndarray, right: np.ndarray) -> int:
    """How many tokens two arrays share at their start."""
    shorter = min(len(left), len(right))
    different = np.flatnonzero(left[:shorter] != right[:shorter])
    return int(different[0]) if len(different) else shorter


_AT_ONCE = 1024
"""Records in memory together."""


class MismatchedPairEncoder(PairEncoder):
    """Pairs for KTO: as `PairEncoder`, with the column kl_ids, an answer to another prompt."""

    def finish(self, dataset: Dataset, keep: Keep = keep_in_memory) -> Dataset:
        """Add the other answers, good ones and bad ones in turn."""
        return with_mismatches(super().finish(dataset), ("chosen_ids", "rejected_ids"), self.limits.total, keep)


class LabelledEncoder(PairEncoder):
    """Single answers with a label, truncated as those of pairs.

    Columns prompt_ids, completion_ids, label (bool), length, and kl_ids.
    """

    schema = pa.schema({"prompt_ids": IDS, "completion_ids": IDS, "label": pa.bool_(), **COUNT_COLUMNS})

    def read(self, row: Row) -> PairText:
        """The text of a row and its answer's span."""
        found = to_labelled(row)
        said = answer_text(found, found.completion, self.finder)
        characters = said.spans[0].start + answer_characters(found.completion)
        return PairText([said], label=found.label, characters=characters)

    def encode(self, parsed: list[PairText], counts: Counts) -> dict[str, list[Any]]:
        """Ids within the limits."""
        pairs = self.pairs(parsed, counts)
        return {
            "prompt_ids": [pair.prompt for pair in pairs],
            "completion_ids": [pair.answers[0] for pair in pairs],
            "label": [pair.text.label for pair in pairs],
            **count_columns(pairs),
        }

    def finish(self, dataset: Dataset, keep: Keep = keep_in_memory) -> Dataset:
        """Say how many answers are good, and add the other answers."""
        good = pc.sum(dataset.select_columns("label").with_format("arrow")[:]["label"]).as_py()
        notice(f"{good} of {len(dataset)} answers are good, {len(dataset) - good} bad")
        return with_mismatches(dataset, ("completion_ids",), self.limits.total, keep)


def with_mismatches(dataset: Dataset, columns: tuple[str, ...], longest: int, keep: Keep) -> Dataset:
    """The dataset with kl_ids: the answer of the record half the data set away, cut to fit behind the prompt.

    Args:
        columns: Where answers are; records take them from these in turn.
        longest: Tokens of prompt and answer together.
        keep: Gets a thousand records at a time.
    """
    schema = dataset.data.schema.remove_metadata().append(pa.field("kl_ids", IDS))
    number, read = len(dataset), dataset.with_format("arrow")
    # Half the data set, not the neighbour: neighbours often answer the same question.
    away = max(1, number // 2)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, number, _AT_ONCE):
            places = np.arange(start, min(start + _AT_ONCE, number))
            others, own = read[(places + away) % number], read[places]
            rooms = np.maximum(1, longest - pc.list_value_length(own["prompt_ids"]).to_numpy())
            # Alternating, so that as many good answers as bad ones stand in the KL term.
            found = [
                others[columns[place % len(columns)]][row].values.to_numpy()[:room]
                for row, (place, room) in enumerate(zip(places.tolist(), rooms.tolist(), strict=True))
            ]
            column = lists_of(np.concatenate(found), [len(ids) for ids in found])
            yield from own.combine_chunks().append_column("kl_ids", column).cast(schema).to_batches()

    return keep(schema, batches())
