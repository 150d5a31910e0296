"""Conversations to token ids and labels on what the assistant says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from hftune.arguments import SFTArguments
from hftune.constants import IGNORE_INDEX
from hftune.data.readers.files import Row
from hftune.data.records.schemas import Conversation, to_conversation
from hftune.data.templates.choice import require_chat_template
from hftune.data.templates.spans import Span, SpanFinder
from hftune.data.templates.turn_token_guard import count_turn_tokens
from hftune.data.tokenizing.bytewise import ByteTokenizer, Tokens, is_bytewise
from hftune.data.tokenizing.counts import Counts, check_length, require_fast
from hftune.data.tokenizing.encoder import IDS, Encoder
from hftune.data.tokenizing.labels import mask
from hftune.data.tokenizing.prefixes import PrefixEncoder
from hftune.errors import ArgumentError, DataError

NO_TARGET = "no trained token within max_length"

Parsed = tuple[str, list[Span], list[float]]
"""The text of a record, its trained spans in characters, and their weights."""


class ChatEncoder(Encoder):
    """Conversations for SFT, with labels on what the assistant says.

    Each conversation is tokenised once, as a whole. What is longer than `max_length` loses its end; no EOS is added
    there. A record without a trained token in what is left is dropped and counted.

    Columns input_ids, labels (IGNORE_INDEX where not trained), at most `max_length` int32 each; length; trained; and
    with `turn_weights` loss_weights (float32, one a token).

    Args:
        max_length: Tokens; None for no limit.
        train_on_inputs: Train on every token instead.
        last_turn_only: Train only on the last assistant turn.
        turn_weights: A turn's `weight` scales its loss; else it may only be 0 or 1.
        by_marks: Where a template marks what is generated, train that; without marks turns are located in the text.
        borders_in_text: What becomes of turn tokens that contents spell, a mode of `TurnTokenGuard`.

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
        self.finder = SpanFinder(
            tokenizer,
            whole=train_on_inputs,
            last_turn_only=last_turn_only,
            by_marks=by_marks,
            borders_in_text=borders_in_text,
        )
        self.prefixes = PrefixEncoder(tokenizer, max_length)
        self.bytewise = ByteTokenizer(tokenizer, max_length) if is_bytewise(tokenizer) else None
        columns = {"input_ids": IDS, "labels": IDS, "length": pa.int32(), "trained": pa.int32()}
        if turn_weights:
            columns["loss_weights"] = pa.list_(pa.float32())
        self.schema = pa.schema(columns)

    @classmethod
    def from_arguments(cls, tokenizer: PreTrainedTokenizerBase, args: SFTArguments) -> ChatEncoder:
        """As the flags of run_sft.py say."""
        return cls(
            tokenizer,
            max_length=args.max_length,
            train_on_inputs=args.train_on_inputs,
            last_turn_only=args.train_on_last_turn,
            turn_weights=args.turn_weights,
            borders_in_text=args.borders_in_text,
        )

    def whole(self) -> ChatEncoder:
        """Conversations as long as they are."""
        return ChatEncoder(
            self.tokenizer,
            max_length=None,
            train_on_inputs=self.finder.whole,
            last_turn_only=self.finder.last_turn_only,
            turn_weights=self.turn_weights,
            by_marks=self.finder.by_marks,
            borders_in_text=self.finder.guard.mode,
        )

    def settings(self) -> dict[str, Any]:
        """For the fingerprint."""
        return {
            "encoder": "chat",
            "max_length": self.max_length,
            "train_on_inputs": self.finder.whole,
            "last_turn_only": self.finder.last_turn_only,
            "turn_weights": self.turn_weights,
            "by_marks": self.finder.by_marks,
            "borders_in_text": self.finder.guard.mode,
        }

    def parse(self, row: Row) -> Parsed:
        """The text of a row, its trained spans in characters and their weights."""
        conversation = to_conversation(row)
        found = conversation_text(conversation, self.finder)
        if not self.turn_weights and any(weight != 1.0 for weight in found[2]):
            raise DataError(
                f"a turn has the weight {next(weight for weight in found[2] if weight != 1.0)}",
                place=row.origin,
                fix="Add --turn_weights to scale the loss of turns, or write 0 or 1.",
                kind="turn with a fractional weight",
            )
        return found

    def encode(self, parsed: list[Parsed], counts: Counts) -> dict[str, list[Any]]:
        """Ids and labels of the first `max_length` tokens."""
        columns: dict[str, list[Any]] = {field: [] for field in self.schema.names}
        for (text, _, _), tokens in zip(parsed, self._tokens(parsed), strict=True):
            count_turn_tokens(counts, [text])
            if not tokens.trained:
                whole = self.tokenizer(text, add_special_tokens=False)["input_ids"]
                counts.drop(NO_TARGET, needs=len(whole))
                continue
            counts.used += 1
            counts.truncated += tokens.cut
            counts.tokens += len(tokens.ids)
            counts.trained_tokens += tokens.trained
            columns["input_ids"].append(tokens.ids)
            columns["labels"].append(tokens.labels)
            columns["length"].append(len(tokens.ids))
            columns["trained"].append(tokens.trained)
            if tokens.weights is not None:
                columns["loss_weights"].append(tokens.weights)
        return columns

    def _tokens(self, parsed: list[Parsed]) -> list[Tokens]:
        """The tokens of each record, by the quickest way that is exact for it."""
        if self.bytewise is None:
            return self._by_ranges(parsed)
        weights = [weights for _, _, weights in parsed] if self.turn_weights else None
        found = self.bytewise([text for text, _, _ in parsed], [spans for _, spans, _ in parsed], weights)
        others = iter(self._by_ranges([one for one, tokens in zip(parsed, found, strict=True) if tokens is None]))
        return [next(others) if tokens is None else tokens for tokens in found]

    def _by_ranges(self, parsed: list[Parsed]) -> list[Tokens]:
        """The same by the character ranges of tokens, which any tokenizer gives."""
        made = []
        encoded = self.prefixes([text for text, _, _ in parsed])
        for (encoding, covered), (text, spans, weights) in zip(encoded, parsed, strict=True):
            ids = np.array(encoding.ids[: self.max_length], dtype=np.int32)
            labels, scale = mask(ids, encoding, covered, spans, weights if self.turn_weights else None)
            trained = int(np.count_nonzero(labels[1:] != IGNORE_INDEX))
            made.append(Tokens(ids, labels, scale, trained, covered < len(text) or len(encoding) > len(ids)))
        return made


def conversation_text(conversation: Conversation, finder: SpanFinder) -> tuple[str, list[Span], list[float]]:
    """The text of a conversation, its trained spans and weights; errors name the record."""
    try:
        return finder(conversation.messages, conversation.tools)
    except DataError as error:
        raise error.at(conversation.origin) from error
