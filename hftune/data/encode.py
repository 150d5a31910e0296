"""Conversations and texts to token ids and labels: SFT and PT."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from hftune.arguments.training import PTArguments, SFTArguments
from hftune.constants import IGNORE_INDEX
from hftune.data.counts import Counts, check_length, require_fast
from hftune.data.encoder import IDS, Encoder, Ragged
from hftune.data.mask import SPLIT, SpanFinder, span_of_tokens
from hftune.data.readers.files import Row
from hftune.data.records import to_conversation, to_text
from hftune.data.rendering import Renderer, require_chat_template
from hftune.data.turn_tokens import AnyEncoding, GuardedText, TurnTokenGuard, by_kind, encode_batch, encode_parts
from hftune.data.turns import MASK, SpannedText
from hftune.errors import ArgumentError, DataError

# Characters that a tokenizer's word boundaries may depend on beyond the word.
_AHEAD = 2
# Kinds of text for each UTF-8 byte a character: a page of Chinese with some English has fewer tokens than one without.
_KINDS = 16


class PrefixEncoder:
    """Encodes texts that already hold their special tokens.

    Args:
        tokenizer: A fast tokenizer.
        max_length: Tokens that are wanted of each text; None for all.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> None:
        self.backend = tokenizer.backend_tokenizer
        self.max_length = max_length
        added = [token for token in tokenizer.get_added_vocab() if token]
        self.longest, self.openings = max(map(len, added), default=0), {token[0] for token in added}
        # Characters a token by kind of text, as the texts before had them: Chinese has fewer than English.
        # A wrong guess costs time, never a token.
        self.density: dict[int, float] = {}

    def __call__(self, texts: list[str]) -> list[tuple[AnyEncoding, int]]:
        """(encoding, characters of the text that it covers) of each text.

        The first `max_length` tokens are those of the whole text. Where the text is covered whole, all tokens are.
        """
        return by_kind(texts, self._read, self._read_parts)

    def _read_parts(self, text: GuardedText) -> tuple[AnyEncoding, int]:
        return encode_parts(self.backend, text), len(text)

    def _read(self, texts: list[str]) -> list[tuple[AnyEncoding, int]]:
        # State of the tokenizer that any earlier call may have left; truncation would cut from a side of its choice.
        self.backend.no_truncation()
        self.backend.no_padding()
        if self.max_length is None:
            return [(found, len(text)) for found, text in zip(self._encode(texts), texts, strict=True)]
        done: dict[int, tuple[AnyEncoding, int]] = {}
        # All texts of a chunk go in one call; those whose guess was too short go again, a quarter longer.
        reach = {index: self._reach(text) for index, text in enumerate(texts)}
        while reach:
            encodings = self._encode([texts[index][:end] for index, end in reach.items()])
            missed = {}
            for (index, end), found in zip(reach.items(), encodings, strict=True):
                text = texts[index]
                self._learn(text, end / max(1, len(found)))
                if end == len(text) or self._is_final(found, text[:end]):
                    done[index] = found, end
                else:
                    missed[index] = max(self._reach(text), min(len(text), end * 5 // 4 + 1))
            reach = missed
        return [done[index] for index in range(len(texts))]

    def _reach(self, text: str) -> int:
        """How many characters probably hold `max_length` tokens and a margin."""
        assert self.max_length is not None
        if len(text) <= self.max_length:
            return len(text)  # rarely more than a token a character
        # A tenth more than expected, and a margin for `_is_final`: reading twice costs more than reading too much.
        return min(len(text), int(1.1 * self.max_length * self._expected(text)) + 16)

    def _expected(self, text: str) -> float:
        """Characters a token of a text: those of its kind, or of the kind that is nearest among those met."""
        if not self.density:
            # Nothing is known yet: one beginning is read to learn it, rather than all texts of a chunk by a guess.
            head = text[: self.max_length]
            self._learn(text, len(head) / max(1, len(self._encode([head])[0])))
        kind = self._kind(text)
        return self.density[min(self.density, key=lambda met: abs(met - kind))]

    def _learn(self, text: str, density: float) -> None:
        # A slow mean: a single odd text must not make all others be read twice.
        kind = self._kind(text)
        before = self.density.get(kind, density)
        self.density[kind] = before + 0.1 * (density - before)

    def _kind(self, text: str) -> int:
        """Sixteenths of a UTF-8 byte a character: 16 for English, 48 for Chinese, between them where both are mixed.

        By as many characters as tokens are wanted, which are most of what will be read.
        """
        head = text[: self.max_length]
        return round(_KINDS * len(head.encode("utf-8", "replace")) / max(1, len(head)))

    def _encode(self, texts: list[str]) -> list[Encoding]:
        found: list[Encoding] = self.backend.encode_batch(texts, add_special_tokens=False)
        return found

    def _is_final(self, encoding: Encoding, prefix: str) -> bool:
        """Whether the first `max_length` tokens cannot change with what follows the prefix."""
        assert self.max_length is not None
        if len(encoding) <= self.max_length:
            return False
        # A special token that the cut divides is read as words of its own, and may join the word before it.
        tail = prefix[-self.longest :]
        doubtful = len(tail) if self.openings.intersection(tail) else 0
        edge = encoding.char_to_word(max(0, len(prefix) - doubtful - _AHEAD))
        last = encoding.token_to_word(self.max_length - 1)
        # Two words between what is kept and the cut: the word that the cut may have divided, and the one that may join
        # it.
        return edge is not None and last is not None and last + 2 <= edge


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


TOO_SHORT = "fewer than 2 tokens"


class TextEncoder(Encoder):
    """Texts for pre-training, each with the tokenizer's own special tokens (such as BOS) and EOS at its end.

    Columns input_ids and labels (equal), length (tokens) and trained (those that have one before them).

    Args:
        block_size: Cut documents into blocks of so many tokens; a block of fewer than 2 tokens is left out. None keeps
            documents whole, for packing.
        append_eos: End each document with EOS.

        borders_in_text: What becomes of turn tokens that texts spell, a mode of `TurnTokenGuard`.

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
        block_size: int | None = None,
        append_eos: bool = True,
        borders_in_text: str = "split",
    ) -> None:
        check_length(block_size, "--block_size")
        require_fast(tokenizer)
        # A model that never sees an end of text never stops when it is asked to write.
        if append_eos and tokenizer.eos_token_id is None:
            raise DataError("the tokenizer has no EOS token to end documents with", fix="Set its eos_token.")
        self.tokenizer, self.block_size = tokenizer, block_size
        self.eos: int | None = tokenizer.eos_token_id if append_eos else None
        self.guard = TurnTokenGuard(
            tokenizer, borders_in_text, Renderer(tokenizer) if tokenizer.chat_template else None
        )

    @classmethod
    def from_arguments(cls, tokenizer: PreTrainedTokenizerBase, args: PTArguments) -> TextEncoder:
        """Documents in blocks of `--block_size`."""
        return cls(tokenizer, block_size=args.block_size, borders_in_text=args.borders_in_text)

    def without_limit(self) -> TextEncoder:
        """Documents as long as they are."""
        return TextEncoder(self.tokenizer, append_eos=self.eos is not None, borders_in_text=self.guard.mode)

    def settings(self) -> dict[str, Any]:
        """For the fingerprint."""
        return {
            "encoder": "text",
            # Under the name by which folders of older versions have it.
            "piece": self.block_size,
            "append_eos": self.eos is not None,
            "borders_in_text": self.guard.mode,
        }

    def parse(self, row: Row) -> str:
        """The text of a row; EOS at its end, which `encode` puts there, is not part of what it says."""
        text = to_text(row)
        if self.eos is not None and self.guard.mode != "allow":
            # Corpora often end each text with it; as text it would be split into letters by the guard.
            text = text.removesuffix(str(self.tokenizer.eos_token))
        try:
            return self.guard.document(text)
        except DataError as error:
            raise error.at(row.origin) from error

    def encode(self, parsed: list[str], counts: Counts) -> dict[str, list[Any]]:
        """Documents, or their blocks; `truncated` counts documents whose last, lone token is left out."""
        found: Ragged = []
        encodings = encode_batch(self.tokenizer, parsed, add_special_tokens=True)
        for text, encoding in zip(parsed, encodings, strict=True):
            counts.note_texts([text])
            blocks = self._blocks(self._ended(encoding.ids), counts)
            if not blocks:
                counts.drop(TOO_SHORT)
                continue
            counts.used += 1
            counts.tokens += sum(map(len, blocks))
            counts.trained_tokens += sum(map(len, blocks)) - len(blocks)
            found.extend(blocks)
        lengths = [len(ids) for ids in found]
        return {"input_ids": found, "labels": found, "length": lengths, "trained": [length - 1 for length in lengths]}

    def _ended(self, ids: list[int]) -> np.ndarray:
        # Some tokenizers append EOS themselves.
        if self.eos is not None and ids[-1:] != [self.eos]:
            ids = [*ids, self.eos]
        return np.array(ids, dtype=np.int32)

    def _blocks(self, document: np.ndarray, counts: Counts) -> Ragged:
        step = self.block_size or max(len(document), 1)
        blocks = [document[start : start + step] for start in range(0, len(document), step)]
        # A lone token has nothing to predict and nothing that predicts it.
        kept = [block for block in blocks if len(block) >= 2]
        counts.truncated += bool(kept) and len(kept) < len(blocks)
        return kept
