"""What reward models train on, and the texts that they score."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hftune.arguments.preference import DPOArguments, RMArguments
from hftune.data.compared_answers import Preference, Solution, is_stepwise, to_preference, to_solution
from hftune.data.counts import Context, Counts
from hftune.data.encode import PrefixEncoder
from hftune.data.encode_pairs import COUNT_COLUMNS, PairEncoder, PairText, answer_text, count_columns, limits_of
from hftune.data.encoder import IDS, Encoder, Keep, keep_in_memory
from hftune.data.files import Row
from hftune.data.formats import pair_format
from hftune.data.mask import KEEP, SpanFinder, tokens_of
from hftune.data.messages import Message, without_weight
from hftune.data.records import Conversation, to_conversation
from hftune.data.rendering import Renderer, require_chat_template
from hftune.data.turn_tokens import AnyEncoding, TurnTokenGuard, token_ids, turn_tokens_in
from hftune.data.turns import Span, SpannedText
from hftune.errors import DataError
from hftune.logging import notice


class RewardPairEncoder(PairEncoder):
    """Preference pairs for a reward model, truncated as `PairEncoder` does.

    An answer may have several turns, with results of tools and further questions in it: a score is about all of a
    conversation. What a template writes after the terminator (ChatML's line break) stays: RL scores conversations as
    the template writes them, and the score is read at the last token.

    Columns chosen_ids and rejected_ids (prompt and answer), length, source (the record's own, else its file's name),
    and margin (float: the difference of scores) if any row has one.

    Raises:
        DataError: A negative difference where it weighs the loss.
    """

    schema = pa.schema(
        {"chosen_ids": IDS, "rejected_ids": IDS, "margin": pa.float32(), "source": pa.string(), **COUNT_COLUMNS}
    )
    to_the_end = True

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, score_difference: str = "margin", **settings: Any
    ) -> None:
        # Not the prompt that inference gives, but the conversation as the template writes it: so it is scored.
        super().__init__(tokenizer, **settings, rewritten=KEEP)
        self.score_difference = score_difference
        self.all_turns = SpanFinder(tokenizer, borders_in_text=self.finder.guard.mode)

    @classmethod
    def from_arguments(cls, tokenizer: PreTrainedTokenizerBase, args: RMArguments | DPOArguments) -> RewardPairEncoder:
        """The encoder that the flags of run_rm.py ask for."""
        return cls(
            tokenizer,
            limits=limits_of(args),
            score_difference=args.score_difference,
            borders_in_text=args.borders_in_text,
        )

    def settings(self) -> dict[str, Any]:
        """For the fingerprint."""
        return super().settings() | {"score_difference": self.score_difference}

    def read(self, row: Row) -> PairText:
        """The texts of a row, its answers' spans, and where it comes from."""
        preference = to_preference(row)
        sides = [self._side(preference, answer) for answer in (preference.chosen, preference.rejected)]
        pair = self.pair_of(preference, *sides)
        if self.score_difference == "weight" and pair.margin is not None and pair.margin < 0:
            raise DataError(
                f"the better answer has the lower score, by {-pair.margin:g}; a loss cannot weigh less than nothing",
                fix="Swap the answers, or use --score_difference margin or none.",
                kind="negative score difference",
            )
        pair.source = source_of(row)
        return pair

    def _side(self, preference: Preference, answer: list[Message]) -> SpannedText:
        """The text of prompt and answer, whose one span is the answer: from its first turn to its last."""
        if len(answer) == 1:
            return answer_text(preference, answer, self.finder)
        # The weights of earlier turns are for SFT; with a weight of 0 a turn would be no span and shift the count
        # below.
        before = [without_weight(message) for message in preference.prompt]
        found = self.all_turns(before + answer, preference.tools, preference.template_arguments)
        # The first span behind those of the prompt's own turns.
        said = self.all_turns.render.reads.said(before, preference.tools)
        first = sum(message["role"] == "assistant" for message in said)
        return SpannedText(found.text, [Span(found.spans[first].start, found.spans[-1].end)])

    def encode(self, parsed: list[PairText], counts: Counts) -> dict[str, list[Any]]:
        """Ids of both sides of each pair."""
        pairs = self.pairs(parsed, counts)
        return {
            "chosen_ids": [np.concatenate([pair.prompt, pair.answers[0]]) for pair in pairs],
            "rejected_ids": [np.concatenate([pair.prompt, pair.answers[1]]) for pair in pairs],
            "margin": [None if self.score_difference == "none" else pair.text.margin for pair in pairs],
            "source": [pair.text.source for pair in pairs],
            **count_columns(pairs),
        }

    def finish(self, dataset: Dataset, keep: Keep = keep_in_memory) -> Dataset:
        """Without differences, no such column; where some are missing, what changes the loss least."""
        margins = dataset["margin"][:]
        known = [margin for margin in margins if margin is not None]
        if not known:
            return dataset.remove_columns("margin")
        wrong = sum(margin < 0 for margin in known)
        if wrong:
            notice(f"in {wrong} of {len(margins)} pairs the better answer has the lower score")
        if len(known) == len(margins):
            return dataset
        # As a margin 0 changes nothing; as a weight the mean does not change the size of the loss.
        filler = 0.0 if self.score_difference == "margin" else sum(known) / len(known)
        notice(f"{len(margins) - len(known)} of {len(margins)} pairs have no margin; {filler:g} is used for them")
        filled = np.array([filler if margin is None else margin for margin in margins], dtype=np.float32)
        return dataset.remove_columns("margin").add_column("margin", filled)


def source_of(row: Row) -> str:
    """Where a record comes from, by which figures are grouped: its `source` or `data_source`, else its file's name."""
    for name in ("source", "data_source"):
        if isinstance(row.value.get(name), str) and row.value[name]:
            return str(row.value[name])
    return row.file.replace("\\", "/").rsplit("/", 1)[-1]


@dataclass(slots=True)
class StepText:
    """A conversation whose last turn is an answer in steps: each step that counts is a span, and has a label."""

    said: SpannedText
    labels: list[float]
    source: str


class StepEncoder(Encoder):
    """Answers in steps for a process reward model.

    The steps make one turn of the assistant, with a separator between them. A step is scored at the token that holds
    its last character: everything up to there has been seen, and nothing of the next step. What is longer than
    `max_length` loses its end, and the steps that end there.

    Columns input_ids, ends (places of the labelled steps' last tokens), labels (float, the probability that a step is
    right), length and source.

    Raises:
        ArgumentError: A length that is too small.
        DataError: A tokenizer without character offsets, or without a chat template.
    """

    schema = pa.schema(
        {"input_ids": IDS, "ends": IDS, "step_labels": pa.list_(pa.float32()), "source": pa.string(), **COUNT_COLUMNS}
    )

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int,
        step_separator: str = "\n",
        last_only: bool = False,
        labelled_only: bool = True,
        borders_in_text: str = "split",
    ) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self.separator, self.last_only, self.labelled_only = step_separator, last_only, labelled_only
        self.finder = SpanFinder(tokenizer, last_turn_only=True, borders_in_text=borders_in_text)
        self.encodings = PrefixEncoder(tokenizer, None)

    @classmethod
    def from_arguments(cls, tokenizer: PreTrainedTokenizerBase, args: RMArguments) -> StepEncoder:
        """The encoder that the flags of run_rm.py ask for."""
        return cls(
            tokenizer,
            max_length=args.max_length,
            step_separator=args.step_separator,
            last_only=args.train_on_last_step_only,
            borders_in_text=args.borders_in_text,
        )

    def settings(self) -> dict[str, Any]:
        """For the fingerprint."""
        return {
            "encoder": "steps",
            "max_length": self.max_length,
            "separator": self.separator,
            "last_only": self.last_only,
            "borders_in_text": self.finder.guard.mode,
        }

    def read(self, row: Row) -> StepText:
        """The answer of a row as text."""
        return self.text_of(to_solution(row), source_of(row))

    def text_of(self, solution: Solution, source: str) -> StepText:
        """A solution as text, and where the steps that count end in it."""
        # One turn: what a template writes around it stands once, at its ends.
        answer = {"role": "assistant", "content": self.separator.join(solution.steps)}
        found = self.finder([*solution.prompt, answer], solution.tools, solution.template_arguments)
        steps = _located(solution, found)
        kept = [
            (step, -1.0 if label is None else label)
            for step, label in zip(steps, solution.labels, strict=True)
            if label is not None or not self.labelled_only
        ]
        kept = kept[-1:] if self.last_only else kept
        said = SpannedText(found.text, [step for step, _ in kept])
        return StepText(said, [label for _, label in kept], source)

    def encode(self, parsed: list[StepText], counts: Counts) -> dict[str, list[Any]]:
        """Ids, and the last tokens of steps, within `max_length`."""
        columns: dict[str, list[Any]] = {name: [] for name in self.schema.names}
        for text, encoding in zip(parsed, self.encodings([one.said.text for one in parsed]), strict=True):
            counts.note_texts([text.said.text])
            ids = np.array(encoding.ids[: self.max_length], dtype=np.int32)
            ends = last_tokens(encoding, text.said)
            # A step that is cut has no end to be scored at.
            inside = [number for number, end in enumerate(ends) if end < len(ids)]
            if not inside:
                counts.drop("no labelled step within --max_length")
                continue
            counts.used += 1
            counts.truncated += len(ids) < len(encoding.ids)
            counts.tokens += len(ids)
            counts.trained_tokens += len(inside)
            steps = np.array([ends[number] for number in inside], dtype=np.int32)
            labels = np.array([text.labels[number] for number in inside], dtype=np.float32)
            values = (ids, steps, labels, text.source, len(ids), len(inside))
            for name, value in zip(self.schema.names, values, strict=True):
                columns[name].append(value)
        return columns


def _located(solution: Solution, found: SpannedText) -> list[Span]:
    """Where each step stands in the one span of a text."""
    (turn,) = found.spans
    steps, at = [], turn.start
    for step in solution.steps:
        # From where the last one ended: equal steps follow each other.
        start = found.text.find(step, at, turn.end)
        if start < 0:
            raise DataError(
                f"the chat template writes a step in another way: {step[:60]!r}",
                fix="Give another --chat_template, or fix the step.",
                kind="steps rewritten by the template",
            )
        at = start + len(step)
        steps.append(Span(start, at))
    return steps


def last_tokens(encoding: AnyEncoding, said: SpannedText) -> list[int]:
    """The token that holds the last character of each span; of several (bytes), the last, which makes it whole."""
    # Not the separator behind it: some tokenizers join it with the next step's first character.
    return [end - 1 for _, end in tokens_of(encoding, [Span(step.end - 1, step.end) for step in said.spans])]


CHOSEN, REJECTED, SINGLE = "_chosen", "_rejected", ""


@dataclass
class Scored:
    """One conversation on its way through the model.

    `name` is what its score is called by in the record: `score` and this. `ends` are the places of the tokens at which
    steps are scored; None: the conversation is, at its end. `outputs` are raw scores, one a step. `turn_tokens` are
    those that it spells in its contents.
    """

    name: str
    ids: list[int]
    ends: list[int] | None
    truncated: bool = False
    outputs: list[float] | None = None
    turn_tokens: tuple[str, ...] = ()


class ScoringEncoder:
    """Makes conversations of records.

    Args:
        tokenizer: The reward model's, with its chat template.
        steps: Whether steps are scored.
        separator: Between the steps of an answer.
        max_length: Tokens that are kept of a conversation, its end; None: all.
        borders_in_text: What becomes of turn tokens that contents spell, a mode of `TurnTokenGuard`.
        context: What the model can read; None: everything.

    Raises:
        DataError: A tokenizer without a chat template, or (for steps) without character offsets.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        steps: bool,
        separator: str = "\n",
        max_length: int | None = None,
        borders_in_text: str = "split",
        context: Context | None = None,
    ) -> None:
        self.context = context or Context(None, 0)
        require_chat_template(tokenizer)
        self.tokenizer, self.separator, self.max_length = tokenizer, separator, max_length
        self.render = Renderer(tokenizer)
        self.guard = TurnTokenGuard(tokenizer, borders_in_text, self.render)
        self.encoder: StepEncoder | None = None
        if steps:
            options: dict[str, Any] = {"step_separator": separator, "borders_in_text": borders_in_text}
            self.encoder = StepEncoder(tokenizer, max_length=2**30, labelled_only=False, **options)

    def __call__(self, row: Row) -> list[Scored]:
        """The conversations of a record: two of a preference pair, one of any other.

        Raises:
            DataError: In no format that hftune reads, without an answer, or longer than the model's context.
        """
        try:
            return [
                self._one(name, said) if isinstance(said, Conversation) else self.solution(name, said)
                for name, said in self._read(row)
            ]
        except DataError as error:
            raise error.at(row.origin) from error

    def _read(self, row: Row) -> list[tuple[str, Conversation | Solution]]:
        """What is scored of a record, by name."""
        if is_stepwise(row.value):
            return [(SINGLE, to_solution(row))]
        if not pair_format(row.value):
            return [(SINGLE, to_conversation(row))]
        pair = to_preference(row)
        answers = ((CHOSEN, pair.chosen), (REJECTED, pair.rejected))
        more = pair.tools, pair.template_arguments
        return [(name, Conversation(pair.prompt + answer, *more)) for name, answer in answers]

    def _one(self, name: str, said: Conversation) -> Scored:
        *before, answer = said.messages
        if self.encoder is not None:
            parts = str(answer.get("content") or "").split(self.separator)
            steps = [part.strip() for part in parts if part.strip()]
            if not steps:
                raise DataError("the answer has no steps", fix="Remove the record.", kind="no steps")
            labels: list[float | None] = [None] * len(steps)
            return self.solution(name, Solution(before, steps, labels, said.tools, said.template_arguments))
        render = self.render.given(said.template_arguments)
        messages = render.reads.said([without_weight(message) for message in said.messages], said.tools)
        text = self.guard.text(render, messages, said.tools)
        self.context.check_text(text)
        (ids,) = token_ids(self.tokenizer, [text], add_special_tokens=False)
        return self._cut(Scored(name, ids, None, turn_tokens=turn_tokens_in(text)))

    def solution(self, name: str, solution: Solution) -> Scored:
        """An answer in steps; scored as a whole where steps are not."""
        if self.encoder is None:
            answer: Message = {"role": "assistant", "content": self.separator.join(solution.steps)}
            messages = [*solution.prompt, answer]
            return self._one(name, Conversation(messages, solution.tools, solution.template_arguments))
        parsed = self.encoder.text_of(solution, "")
        self.context.check_text(parsed.said.text)
        encoding = self.encoder.encodings([parsed.said.text])[0]
        ends = last_tokens(encoding, parsed.said)
        return self._cut(Scored(name, list(encoding.ids), ends, turn_tokens=turn_tokens_in(parsed.said.text)))

    def _cut(self, one: Scored) -> Scored:
        """Without its beginning, where it is too long; steps in there have no score of their own."""
        # The end stays, where the score is read.
        over = len(one.ids) - self.max_length if self.max_length else 0
        self.context.check(len(one.ids) - max(0, over))
        if over <= 0:
            return one
        ends = None if one.ends is None else [end - over for end in one.ends if end >= over]
        return replace(one, ids=one.ids[over:], ends=ends, truncated=True)
