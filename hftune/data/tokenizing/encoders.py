"""Texts and conversations to token ids. Pairs and prompts are in `preferences`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from hftune.arguments import PTArguments, SFTArguments
from hftune.constants import IGNORE_INDEX
from hftune.data.readers.files import Row
from hftune.data.records.schemas import Conversation, to_conversation, to_text
from hftune.data.templates.choice import require_chat_template
from hftune.data.templates.rendering import Renderer
from hftune.data.templates.respelled_tokenizer import encode_batch
from hftune.data.templates.spans import Span, SpanFinder
from hftune.data.templates.turn_token_guard import Borders, count_borders
from hftune.data.tokenizing.bytewise import ByteTokenizer, Tokens, is_bytewise
from hftune.data.tokenizing.counts import Counts, check_length, require_fast
from hftune.data.tokenizing.encoder import IDS, Encoder, Ragged
from hftune.data.tokenizing.prefixes import PrefixEncoder, labels_by_ranges, token_span
from hftune.errors import ArgumentError, DataError

NO_TARGET = "no trained token within max_length"
TOO_SHORT = "fewer than 2 tokens"

Parsed = tuple[str, list[Span], list[float]]
"""The text of a record, its trained spans in characters, and their weights."""


class TextEncoder(Encoder):
    """Texts for pre-training, each with the tokenizer's own special tokens (such as BOS) and EOS at its end.

    Columns input_ids and labels (equal), length (tokens) and trained (those that have one before them).

    Args:
        piece: Cut documents into pieces of so many tokens; a piece of fewer than 2 tokens is left out. None keeps
            documents whole, for packing.
        append_eos: End each document with EOS.

        borders: What becomes of turn borders in texts, a mode of `Borders`.

    Raises:
        DataError: The tokenizer has no EOS token.
    """

    schema = pa.schema({"input_ids": IDS, "labels": IDS, "length": pa.int32(), "trained": pa.int32()})
    length_flag = "--train_file_dir"
    row_length = "block_size"

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        piece: int | None = None,
        append_eos: bool = True,
        borders: str = "split",
    ) -> None:
        check_length(piece, "--block_size")
        require_fast(tokenizer)
        if append_eos and tokenizer.eos_token_id is None:
            raise DataError("the tokenizer has no EOS token to end documents with", fix="Set its eos_token.")
        self.tokenizer, self.piece = tokenizer, piece
        self.eos: int | None = tokenizer.eos_token_id if append_eos else None
        self.borders = Borders(tokenizer, borders, Renderer(tokenizer) if tokenizer.chat_template else None)

    @classmethod
    def from_arguments(cls, tokenizer: PreTrainedTokenizerBase, args: PTArguments) -> TextEncoder:
        """Documents in pieces of `--block_size`."""
        return cls(tokenizer, piece=args.block_size, borders=args.borders_in_text)

    def whole(self) -> TextEncoder:
        """Documents as long as they are."""
        return TextEncoder(self.tokenizer, append_eos=self.eos is not None, borders=self.borders.mode)

    def settings(self) -> dict[str, Any]:
        """For the fingerprint."""
        return {
            "encoder": "text",
            "piece": self.piece,
            "append_eos": self.eos is not None,
            "borders_in_text": self.borders.mode,
        }

    def parse(self, row: Row) -> str:
        """The text of a row; EOS at its end, which `encode` puts there, is not part of what it says."""
        text = to_text(row)
        if self.eos is not None and self.borders.mode != "allow":
            text = text.removesuffix(str(self.tokenizer.eos_token))
        try:
            return self.borders.document(text)
        except DataError as error:
            raise error.at(row.origin) from error

    def encode(self, parsed: list[str], counts: Counts) -> dict[str, list[Any]]:
        """Documents, or their pieces; `truncated` counts documents whose last, lone token is left out."""
        found: Ragged = []
        encodings = encode_batch(self.tokenizer, parsed, add_special_tokens=True)
        for text, encoding in zip(parsed, encodings, strict=True):
            count_borders(counts, [text])
            pieces = self._pieces(self._ended(encoding.ids), counts)
            if not pieces:
                counts.drop(TOO_SHORT)
                continue
            counts.used += 1
            counts.tokens += sum(map(len, pieces))
            counts.trained_tokens += sum(map(len, pieces)) - len(pieces)
            found.extend(pieces)
        lengths = [len(ids) for ids in found]
        return {"input_ids": found, "labels": found, "length": lengths, "trained": [length - 1 for length in lengths]}

    def _ended(self, ids: list[int]) -> np.ndarray:
        if self.eos is not None and ids[-1:] != [self.eos]:
            ids = [*ids, self.eos]
        return np.array(ids, dtype=np.int32)

    def _pieces(self, document: np.ndarray, counts: Counts) -> Ragged:
        step = self.piece or max(len(document), 1)
        pieces = [document[start : start + step] for start in range(0, len(document), step)]
        kept = [piece for piece in pieces if len(piece) >= 2]
        counts.truncated += bool(kept) and len(kept) < len(pieces)
        return kept


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
        borders: What becomes of turn borders in contents, a mode of `Borders`.

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
        borders: str = "split",
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
            tokenizer, whole=train_on_inputs, last_turn_only=last_turn_only, by_marks=by_marks, borders=borders
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
            borders=args.borders_in_text,
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
            borders=self.finder.borders.mode,
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
            "borders_in_text": self.finder.borders.mode,
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
            count_borders(counts, [text])
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


def mask(
    ids: np.ndarray, encoding: Encoding, covered: int, spans: list[Span], weights: list[float] | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Labels (length,) int32: the id where a token shares a character with a span, IGNORE_INDEX elsewhere.

    Args:
        ids: The kept tokens, the first of `encoding`.
        covered: Characters of the text that `encoding` stands for.
        weights: One a span; None for no weights.

    Returns:
        Labels, and the weight of each token (length,) float32, 0 where it is not trained; None without weights.
    """
    labels = np.full(len(ids), IGNORE_INDEX, dtype=np.int32)
    scale = None if weights is None else np.zeros(len(ids), dtype=np.float32)
    for number, (start, end) in enumerate(spans):
        found = token_span(encoding, start, end, covered)
        if found is None:
            inside = np.array(labels_by_ranges(encoding, [(start, end)])[: len(ids)], dtype=np.int32) != IGNORE_INDEX
        else:
            inside = slice(*found)  # type: ignore[assignment]
        labels[inside] = ids[inside]
        if scale is not None and weights is not None:
            scale[inside] = weights[number]
    return labels, scale


def conversation_text(conversation: Conversation, finder: SpanFinder) -> tuple[str, list[Span], list[float]]:
    """The text of a conversation, its trained spans and weights; errors name the record."""
    try:
        return finder(conversation.messages, conversation.tools)
    except DataError as error:
        raise error.at(conversation.origin) from error
