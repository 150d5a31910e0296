"""Answers in steps to token ids for a process reward model, and their batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from hftune.arguments.preference import RMArguments
from hftune.data.preferences.pairs import COUNT_COLUMNS
from hftune.data.preferences.reward_pairs import source_of
from hftune.data.readers.files import Row
from hftune.data.records.solutions import Solution, to_solutions
from hftune.data.templates.guarded_text import AnyEncoding
from hftune.data.templates.proposals import require_chat_template
from hftune.data.templates.span_finder import SpanFinder
from hftune.data.templates.spans import Span, SpannedText
from hftune.data.tokenizing.counts import Counts, check_length, require_fast
from hftune.data.tokenizing.encoder import IDS, Encoder
from hftune.data.tokenizing.labels import tokens_of
from hftune.data.tokenizing.prefixes import PrefixEncoder
from hftune.errors import DataError

CUT = "no labelled step within --max_length"
REWRITTEN = "steps rewritten by the template"


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
    right), length and source. A record may give several rows (PRM800K).

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
        check_length(max_length, "--max_length")
        require_fast(tokenizer)
        require_chat_template(tokenizer)
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

    def parse(self, row: Row) -> list[StepText]:
        """The solutions of a row as text."""
        return [self.text_of(solution, source_of(row)) for solution in to_solutions(row)]

    def text_of(self, solution: Solution, source: str) -> StepText:
        """A solution as text, and where the steps that count end in it."""
        # One turn: what a template writes around it stands once, at its ends.
        answer = {"role": "assistant", "content": self.separator.join(solution.steps)}
        try:
            found = self.finder([*solution.prompt, answer], solution.tools, solution.template_arguments)
        except DataError as error:
            raise error.at(solution.origin) from error
        steps = _located(solution, found)
        kept = [
            (step, -1.0 if label is None else label)
            for step, label in zip(steps, solution.labels, strict=True)
            if label is not None or not self.labelled_only
        ]
        kept = kept[-1:] if self.last_only else kept
        said = SpannedText(found.text, [step for step, _ in kept])
        return StepText(said, [label for _, label in kept], source)

    def encode(self, parsed: list[list[StepText]], counts: Counts) -> dict[str, list[Any]]:
        """Ids, and the last tokens of steps, within `max_length`."""
        columns: dict[str, list[Any]] = {name: [] for name in self.schema.names}
        texts = [text for texts in parsed for text in texts]
        encodings = iter(self.encodings([text.said.text for text in texts]))
        for record in parsed:
            counts.note_texts([one.said.text for one in record])
            rows = [self._row(text, next(encodings)[0], counts) for text in record]
            kept = [row for row in rows if row is not None]
            if not kept:
                counts.drop(CUT)
                continue
            counts.used += 1
            for row in kept:
                for name, value in row.items():
                    columns[name].append(value)
        return columns

    def _row(self, text: StepText, encoding: Any, counts: Counts) -> dict[str, Any] | None:
        ids = np.array(encoding.ids[: self.max_length], dtype=np.int32)
        ends = last_tokens(encoding, text.said)
        # A step that is cut has no end to be scored at.
        inside = [number for number, end in enumerate(ends) if end < len(ids)]
        if not inside:
            return None
        counts.truncated += len(ids) < len(encoding.ids)
        counts.tokens += len(ids)
        counts.trained_tokens += len(inside)
        return {
            "input_ids": ids,
            "ends": np.array([ends[number] for number in inside], dtype=np.int32),
            "step_labels": np.array([text.labels[number] for number in inside], dtype=np.float32),
            "source": text.source,
            "length": len(ids),
            "trained": len(inside),
        }


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
                place=solution.origin,
                fix="Give another --chat_template, or fix the step.",
                kind=REWRITTEN,
            )
        at = start + len(step)
        steps.append(Span(start, at))
    return steps


def last_tokens(encoding: AnyEncoding, said: SpannedText) -> list[int]:
    """The token that holds the last character of each span; of several (bytes), the last, which makes it whole."""
    covered = len(said.text)
    # Not the separator behind it: some tokenizers join it with the next step's first character.
    return [tokens_of(encoding, Span(step.end - 1, step.end), covered)[1] - 1 for step in said.spans]
