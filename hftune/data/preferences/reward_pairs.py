"""Preference pairs to token ids for a reward model, and their batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hftune.arguments.preference import DPOArguments, RMArguments
from hftune.data.preferences.pairs import COUNT_COLUMNS, PairEncoder, PairText, answer_text, count_columns
from hftune.data.preferences.truncation import limits_of
from hftune.data.readers.files import Row
from hftune.data.records.messages import Message, without_weight
from hftune.data.records.preferences import Preference, to_preference
from hftune.data.templates.rewritten import KEEP
from hftune.data.templates.span_finder import SpanFinder
from hftune.data.templates.spans import Span, SpannedText
from hftune.data.tokenizing.counts import Counts
from hftune.data.tokenizing.encoder import IDS, Keep, keep_in_memory
from hftune.errors import DataError
from hftune.logging import notice

NEGATIVE = "negative score difference"


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
            **limits_of(args),
            score_difference=args.score_difference,
            borders_in_text=args.borders_in_text,
        )

    def settings(self) -> dict[str, Any]:
        """For the fingerprint."""
        return super().settings() | {"score_difference": self.score_difference}

    def parse(self, row: Row) -> PairText:
        """The texts of a row, its answers' spans, and where it comes from."""
        preference = to_preference(row)
        sides = [self._side(preference, answer) for answer in (preference.chosen, preference.rejected)]
        pair = self.pair_of(preference, *sides)
        if self.score_difference == "weight" and pair.margin is not None and pair.margin < 0:
            raise DataError(
                f"the better answer has the lower score, by {-pair.margin:g}; a loss cannot weigh less than nothing",
                place=row.origin,
                fix="Swap the answers, or use --score_difference margin or none.",
                kind=NEGATIVE,
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
        try:
            found = self.all_turns(before + answer, preference.tools, preference.template_arguments)
        except DataError as error:
            raise error.at(preference.origin) from error
        # The first span behind those of the prompt's own turns.
        said = self.all_turns.render.reads.said(before, preference.tools)
        first = sum(message["role"] == "assistant" for message in said)
        return SpannedText(found.text, [Span(found.spans[first].start, found.spans[-1].end)])

    def encode(self, parsed: list[PairText], counts: Counts) -> dict[str, list[Any]]:
        """Ids of both sides of each pair."""
        pairs = self.pairs(parsed, counts)
        return {
            "chosen_ids": [np.concatenate([pair.prompt, pair.chosen]) for pair in pairs],
            "rejected_ids": [np.concatenate([pair.prompt, pair.rejected]) for pair in pairs],
            "margin": [None if self.score_difference == "none" else pair.margin for pair in pairs],
            "source": [pair.source for pair in pairs],
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
