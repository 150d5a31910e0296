"""Answers with a label, and mismatched answers: what KTO trains on.

KTO measures how far the policy is from the reference on answers to other prompts. Each record takes the answer of the
record half a data set away, so that the reference's numbers for it can be computed once as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from hftune.data.preferences.pairs import PairEncoder, answer_characters, answer_text
from hftune.data.preferences.truncation import Pair, truncated_pair
from hftune.data.readers.files import Row
from hftune.data.records.labelled import to_labelled
from hftune.data.templates.spans import SpannedText
from hftune.data.tokenizing.counts import Counts
from hftune.data.tokenizing.encoder import IDS, Keep, keep_in_memory, lists_of
from hftune.logging import notice

_AT_ONCE = 1024
"""Records in memory together."""


@dataclass(slots=True)
class LabelledText:
    """Prompt with its answer as text, in which the answer is the one span, and whether it is good."""

    said: SpannedText
    label: bool
    characters: int = 0
    """Those of the prompt as it is rendered and of the answer as it was given."""


class MismatchedPairEncoder(PairEncoder):
    """Pairs for KTO: as `PairEncoder`, with the column kl_ids, an answer to another prompt."""

    def finish(self, dataset: Dataset, keep: Keep = keep_in_memory) -> Dataset:
        """Add the other answers, good ones and bad ones in turn."""
        return with_mismatches(super().finish(dataset), ("chosen_ids", "rejected_ids"), self.limits.total, keep)


class LabelledEncoder(PairEncoder):
    """Single answers with a label, truncated as those of pairs.

    Columns prompt_ids, completion_ids, label (bool), length, and kl_ids.
    """

    schema = pa.schema(
        {"prompt_ids": IDS, "completion_ids": IDS, "label": pa.bool_(), "length": pa.int32(), "trained": pa.int32()}
    )

    def parse(self, row: Row) -> Any:
        """The text of a row and its answer's span."""
        found = to_labelled(row)
        said = answer_text(found, found.completion, self.finder)
        return LabelledText(said, found.label, said.spans[0].start + answer_characters(found.completion))

    def encode(self, parsed: list[Any], counts: Counts) -> dict[str, list[Any]]:
        """Ids within the limits."""
        columns: dict[str, list[Any]] = {name: [] for name in self.schema.names}
        for one, (encoding, _) in zip(parsed, self.encodings([one.said.text for one in parsed]), strict=True):
            counts.note_texts([one.said.text])
            ids, first = self._divide(encoding, one.said)
            # As a pair of two equal answers, so that there is one way to cut.
            whole = Pair(ids[:first], ids[first:], ids[first:], None)
            found = truncated_pair(whole, self.limits, one.characters, counts)
            if found is None:
                continue
            prompt, completion = found.prompt, found.chosen
            counts.used += 1
            counts.tokens += len(prompt) + len(completion)
            counts.trained_tokens += len(completion)
            values = (prompt, completion, one.label, len(prompt) + len(completion), len(completion))
            for name, value in zip(self.schema.names, values, strict=True):
                columns[name].append(value)
        return columns

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
