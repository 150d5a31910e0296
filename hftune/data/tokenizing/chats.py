"""Conversations to token ids and labels on what the assistant says."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from hftune.arguments.training import SFTArguments
from hftune.constants import IGNORE_INDEX
from hftune.data.readers.files import Row
from hftune.data.records.conversations import to_conversation
from hftune.data.templates.empty_thoughts import MASK
from hftune.data.templates.guarded_text import AnyEncoding
from hftune.data.templates.proposals import require_chat_template
from hftune.data.templates.rewritten import SPLIT
from hftune.data.templates.span_finder import SpanFinder
from hftune.data.templates.spans import SpannedText
from hftune.data.tokenizing.counts import Counts, check_length, require_fast
from hftune.data.tokenizing.encoder import IDS, Encoder
from hftune.data.tokenizing.labels import span_of_tokens
from hftune.data.tokenizing.prefixes import PrefixEncoder
from hftune.errors import ArgumentError, DataError

NO_TARGET = "no trained token within max_length"


class ChatEncoder(Encoder):
    """Conversations for SFT, with labels on what the assistant says.

    Each conversation is tokenised once, as a whole. What is longer than `max_length` loses its end; no EOS is added
    there. A record without a trained token in what is left is dropped and counted.

    Columns input_ids, labels (IGNORE_INDEX where not trained), at most `max_length` int32 each; length; trained;
    begins, whether it is the first row of its record; and with `turn_weights` loss_weights (float32, one a token).

    Args:
        max_length: Tokens; None for no limit.
        train_on_inputs: Train on every token instead.
        last_turn_only: Train only on the last assistant turn.
        turn_weights: A turn's `weight` scales its loss; else it may only be 0 or 1.
        by_marks: Where a template marks what is generated, train that; without marks turns are located in the text.
        borders_in_text: What becomes of turn tokens that contents spell, a mode of `TurnTokenGuard`.
        empty_thoughts: What becomes of thoughts that a template writes where an answer has none; see `SpanFinder`.
        rewritten: What becomes of conversations whose earlier turns a template rewrites, a mode of `rows_of`.

    Raises:
        ArgumentError: Everything and the last turn only at once, or a length below 2.
        DataError: A tokenizer without character offsets, or without a chat template.
    """

    row_length = "max_length"
    dummy_kind = "conversation"

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int | None,
        train_on_inputs: bool = False,
        last_turn_only: bool = False,
        turn_weights: bool = False,
        by_marks: bool = True,
        borders_in_text: str = "split",
        empty_thoughts: str = MASK,
        rewritten: str = SPLIT,
    ) -> None:
        check_length(max_length, "--max_length")
        if train_on_inputs and last_turn_only:
            raise ArgumentError(
                "train on everything, or on the last turn only?",
                place="--train_on_inputs, --train_on_last_turn",
                fix="Give one of them.",
            )
        require_fast(tokenizer)
        require_chat_template(tokenizer)
        self.tokenizer = tokenizer
        self.max_length, self.turn_weights = max_length, turn_weights
        # Templates are rendered here, in the workers, and forms are remembered by each of them.
        self.finder = SpanFinder(
            tokenizer,
            train_everything=train_on_inputs,
            last_turn_only=last_turn_only,
            by_marks=by_marks,
            borders_in_text=borders_in_text,
            empty_thoughts=empty_thoughts,
            rewritten=rewritten,
        )
        self.encodings = PrefixEncoder(tokenizer, max_length)
        columns = {"input_ids": IDS, "labels": IDS, "length": pa.int32(), "trained": pa.int32(), "begins": pa.bool_()}
        if turn_weights:
            columns["loss_weights"] = pa.list_(pa.float32())
        self.schema = pa.schema(columns)

    @classmethod
    def from_arguments(cls, tokenizer: PreTrainedTokenizerBase, args: SFTArguments) -> ChatEncoder:
        """The encoder that the flags of run_sft.py ask for."""
        return cls(
            tokenizer,
            max_length=args.max_length,
            train_on_inputs=args.train_on_inputs,
            last_turn_only=args.train_on_last_turn,
            turn_weights=args.turn_weights,
            borders_in_text=args.borders_in_text,
            empty_thoughts=args.empty_thoughts,
            rewritten=args.rewritten_turns,
        )

    def without_limit(self) -> ChatEncoder:
        """Conversations as long as they are."""
        other = copy.copy(self)
        other.max_length, other.encodings = None, PrefixEncoder(self.tokenizer, None)
        return other

    def settings(self) -> dict[str, Any]:
        """For the fingerprint."""
        return {
            "encoder": "chat",
            "max_length": self.max_length,
            "train_on_inputs": self.finder.train_everything,
            "last_turn_only": self.finder.last_turn_only,
            "turn_weights": self.turn_weights,
            "by_marks": self.finder.by_marks,
            "borders_in_text": self.finder.guard.mode,
            "empty_thoughts": self.finder.empty_thoughts,
            "rewritten_turns": self.finder.rewritten,
        }

    def parse(self, row: Row) -> list[SpannedText]:
        """The texts of a record with their spans: one, unless the template rewrites its earlier turns."""
        conversation = to_conversation(row)
        self.finder.render.reads.note_tools(conversation.tools, row.origin)
        try:
            found = self.finder.rows(conversation.messages, conversation.tools, conversation.template_arguments)
        except DataError as error:
            raise error.at(conversation.origin) from error
        fraction = next((span.weight for text in found for span in text.spans if span.weight != 1.0), None)
        if fraction is not None and not self.turn_weights:
            raise DataError(
                f"a turn has the weight {fraction}",
                place=row.origin,
                fix="Add --turn_weights to scale the loss of turns, or write 0 or 1.",
                kind="turn with a fractional weight",
            )
        return found

    def encode(self, parsed: list[list[SpannedText]], counts: Counts) -> dict[str, list[Any]]:
        """Ids and labels of the first `max_length` tokens."""
        columns: dict[str, list[Any]] = {field: [] for field in self.schema.names}
        dropped: list[str] = []
        encodings = iter(self.encodings([one.text for rows in parsed for one in rows]))
        for rows in parsed:
            counts.note_texts([one.text for one in rows])
            truncated, used = False, 0
            for one in rows:
                encoding, covered = next(encodings)
                made = self._row(one, encoding, covered, counts)
                if made is None:
                    continue
                truncated |= len(encoding) > made["length"]
                for name, value in {**made, "begins": not used}.items():
                    columns[name].append(value)
                used += 1
            if not used:
                dropped.append(rows[0].text)
                counts.drop(NO_TARGET)
                continue
            counts.used += 1
            counts.truncated += truncated
            counts.note_rewritten(len(rows), used)
        if not counts.used:
            # Only the message for data of which nothing is left says how long records are: a record that is dropped
            # among others is not tokenised whole for it.
            for text in dropped:
                counts.note_dropped_length(len(self.tokenizer(text, add_special_tokens=False)["input_ids"]))
        return columns

    def _row(self, one: SpannedText, encoding: AnyEncoding, covered: int, counts: Counts) -> dict[str, Any] | None:
        """Ids, labels and counts of a text; None where no trained token is left."""
        # int32 halves the cache and what the DataLoader copies; no vocabulary has 2**31 tokens.
        ids = np.array(encoding.ids[: self.max_length], dtype=np.int32)
        # On the whole encoding, then cut: a span may reach beyond what is kept.
        owner = span_of_tokens(encoding, one.spans, covered)[: len(ids)]
        # The first token does not count: no token before it could predict it.
        trained = int(np.count_nonzero(owner[1:] >= 0))
        if not trained:
            return None
        counts.tokens += len(ids)
        counts.trained_tokens += trained
        labels = np.where(owner >= 0, ids, IGNORE_INDEX).astype(np.int32)
        made: dict[str, Any] = {"input_ids": ids, "labels": labels, "length": len(ids), "trained": trained}
        if self.turn_weights:
            # The 0 at the end is what index -1 finds: tokens of no span.
            weights = np.array([*(span.weight for span in one.spans), 0.0], dtype=np.float32)
            made["loss_weights"] = weights[owner]
        return made
