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
from hftune.data.counts import Counts, require_fast
from hftune.data.encoder import IDS, Encoder, Ragged
from hftune.data.files import Row
from hftune.data.mask import SPLIT, SpanFinder, span_of_tokens
from hftune.data.records import to_conversation, to_text
from hftune.data.rendering import Renderer
from hftune.data.turn_tokens import AnyEncoding, TurnTokenGuard, by_kind, encode_batch, encode_parts
from hftune.data.turns import SpannedText
from hftune.errors import DataError

# Characters that a tokenizer's word boundaries may depend on beyond the word.
_AHEAD = 2


class PrefixEncoder:
    """Encodes texts that already hold their special tokens, of long ones the beginning alone.

    A tokenizer cuts a text into words by looking at most a little ahead, and tokenises each word on its own: the tokens
    of a text's beginning are those of the whole text, up to some words before the cut. Where it has no such words
    (SentencePiece models without a pre-tokenizer) the whole text is read. A property test holds both ways equal.

    Args:
        tokenizer: A fast tokenizer.
        max_length: Tokens that are wanted of each text; None for all.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> None:
        self.backend, self.max_length = tokenizer.backend_tokenizer, max_length
        added = [token for token in tokenizer.get_added_vocab() if token]
        self.longest, self.openings = max(map(len, added), default=0), {token[0] for token in added}
        # UTF-8 bytes a token, as the texts before had them; alike in English and Chinese. A wrong guess costs time.
        self.density = 4.0

    def __call__(self, texts: list[str]) -> list[AnyEncoding]:
        """An encoding of each text, whose first `max_length` tokens are those of the whole text."""
        return by_kind(texts, self._read, lambda text: encode_parts(self.backend, text))

    def _read(self, texts: list[str]) -> list[AnyEncoding]:
        reach = [self._reach(text) for text in texts]
        found = self._encode([text[:end] for text, end in zip(texts, reach, strict=True)])
        missed = []
        for index, (text, end) in enumerate(zip(texts, reach, strict=True)):
            self.density += 0.1 * (
                len(text[:end].encode("utf-8", "replace")) / max(1, len(found[index])) - self.density
            )
            if end < len(text) and not self._is_final(found[index], text[:end]):
                missed.append(index)
        for index, whole in zip(missed, self._encode([texts[index] for index in missed]), strict=True):
            found[index] = whole
        return found

    def _reach(self, text: str) -> int:
        """How many characters probably hold `max_length` tokens and a margin for `_is_final`."""
        if self.max_length is None or len(text) <= self.max_length:
            return len(text)
        head = text[: self.max_length]
        width = len(head.encode("utf-8", "replace")) / len(head)
        return min(len(text), int(1.25 * self.max_length * self.density / width) + 16)

    def _encode(self, texts: list[str]) -> list[AnyEncoding]:
        # State of the tokenizer that any earlier call may have left; truncation would cut from a side of its choice.
        self.backend.no_truncation()
        self.backend.no_padding()
        return [*self.backend.encode_batch(texts, add_special_tokens=False)]

    def _is_final(self, encoding: AnyEncoding, prefix: str) -> bool:
        """Whether the first `max_length` tokens cannot change with what follows the prefix."""
        if self.max_length is None or len(encoding) <= self.max_length or not isinstance(encoding, Encoding):
            return False
        # A special token that the cut divides is read as words of its own, and may join the word before it.
        tail = prefix[-self.longest :]
        doubtful = len(tail) if self.openings.intersection(tail) else 0
        edge = encoding.char_to_word(max(0, len(prefix) - doubtful - _AHEAD))
        last = encoding.token_to_word(self.max_length - 1)
        # Two words between what is kept and the cut: the one that it may have divided, and the one that may join that.
        return edge is not None and last is not None and last + 2 <= edge


class ChatEncoder(Encoder):
    """Conversations for SFT, with labels on what the assistant says.

    Each conversation is tokenised once, as a whole. What is longer than `max_length` loses its end; no EOS is added
    there. A record without a trained token in what is left is dropped and counted.

    Columns input_ids, labels (IGNORE_INDEX where not trained), at most `max_length` int32 each; length; trained;
    begins, whether it is the first row of its record; and with `turn_weights` loss_weights (float32, one a token).

    Args:
        max_length: Tokens; None for no limit.
        turn_weights: A turn's `weight` scales its loss; else it may only be 0 or 1.
        masking: What is trained, and what becomes of texts that are no such text: the arguments of `SpanFinder`.

    Raises:
        ArgumentError: Everything and the last turn only at once, or a length below 2.
        DataError: A tokenizer without character offsets, or without a chat template.
    """

    row_length = "max_length"
    dummy_kind = "conversation"

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, max_length: int | None, turn_weights: bool = False, **masking: Any
    ) -> None:
        self.tokenizer, self.max_length, self.turn_weights = tokenizer, max_length, turn_weights
        # Templates are rendered here, in the workers.
        self.finder = SpanFinder(tokenizer, **{"rewritten": SPLIT, **masking})
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
        own = {"encoder": "chat", "max_length": self.max_length, "turn_weights": self.turn_weights}
        return own | self.finder.settings()

    def read(self, row: Row) -> list[SpannedText]:
        """The texts of a record with their spans: one, unless the template rewrites its earlier turns."""
        conversation = to_conversation(row)
        self.finder.render.reads.note_tools(conversation.tools)
        found = self.finder.rows(conversation.messages, conversation.tools, conversation.template_arguments)
        fraction = next((span.weight for text in found for span in text.spans if span.weight != 1.0), None)
        if fraction is not None and not self.turn_weights:
            raise DataError(
                f"a turn has the weight {fraction}",
                fix="Add --turn_weights to scale the loss of turns, or write 0 or 1.",
                kind="turn with a fractional weight",
            )
        return found

    def encode(self, parsed: list[list[SpannedText]], counts: Counts) -> dict[str, list[Any]]:
        """Ids and labels of the first `max_length` tokens."""
        columns: dict[str, list[Any]] = {field: [] for field in self.schema.names}
        encodings = iter(self.encodings([one.text for rows in parsed for one in rows]))
        for rows in parsed:
            counts.note_texts([one.text for one in rows])
            truncated, used = False, 0
            for one in rows:
                encoding = next(encodings)
                made = self._row(one, encoding, counts)
                if made is None:
                    continue
                truncated |= len(encoding) > made["length"]
                for name, value in {**made, "begins": not used}.items():
                    columns[name].append(value)
                used += 1
            if not used:
                counts.drop("no trained token within max_length")
                continue
            counts.used += 1
            counts.truncated += truncated
            if len(rows) > 1:
                counts.rewritten += 1
                counts.rewritten_rows += used
        return columns

    def _row(self, one: SpannedText, encoding: AnyEncoding, counts: Counts) -> dict[str, Any] | None:
        """Ids, labels and counts of a text; None where no trained token is left."""
        # int32 halves the cache and what the DataLoader copies; no vocabulary has 2**31 tokens.
        ids = np.array(encoding.ids[: self.max_length], dtype=np.int32)
        # On the whole encoding, then cut: a span may reach beyond what is kept.
        owner = span_of_tokens(encoding, one.spans)[: len(ids)]
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


class TextEncoder(Encoder):
    """Texts for pre-training, each with the tokenizer's own special tokens (such as BOS) and EOS at its end.

    Columns input_ids and labels (equal), length (tokens) and trained (those that have one before them).

    Args:
        block_size: Cut documents into blocks of so many tokens; a block of fewer than 2 tokens is left out. None keeps
            documents whole, for packing.
        borders_in_text: What becomes of turn tokens that texts spell, a mode of `TurnTokenGuard`.

    Raises:
        DataError: The tokenizer has no EOS token.
    """

    schema = pa.schema({"input_ids": IDS, "labels": IDS, "length": pa.int32(), "trained": pa.int32()})
    length_flag = "--train_file_dir"
    row_length = "block_size"

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, block_size: int | None = None, borders_in_text: str = "split"
    ) -> None:
        require_fast(tokenizer)
        # A model that never sees an end of text never stops when it is asked to write.
        if tokenizer.eos_token_id is None:
            raise DataError("the tokenizer has no EOS token to end documents with", fix="Set its eos_token.")
        self.tokenizer, self.block_size = tokenizer, block_size
        self.eos: int = tokenizer.eos_token_id
        self.guard = TurnTokenGuard(
            tokenizer, borders_in_text, Renderer(tokenizer) if tokenizer.chat_template else None
        )

    @classmethod
    def from_arguments(cls, tokenizer: PreTrainedTokenizerBase, args: PTArguments) -> TextEncoder:
        """Documents in blocks of `--block_size`."""
        return cls(tokenizer, block_size=args.block_size, borders_in_text=args.borders_in_text)

    def without_limit(self) -> TextEncoder:
        """Documents as long as they are."""
        return TextEncoder(self.tokenizer, borders_in_text=self.guard.mode)

    def settings(self) -> dict[str, Any]:
        """For the fingerprint."""
        return {
            "encoder": "text",
            # Under the name by which folders of older versions have it.
            "piece": self.block_size,
            "borders_in_text": self.guard.mode,
        }

    def read(self, row: Row) -> str:
        """The text of a row; EOS at its end, which `encode` puts there, is not part of what it says."""
        text = to_text(row)
        if self.guard.mode != "allow":
            # Corpora often end each text with it; as text it would be split into letters by the guard.
            text = text.removesuffix(str(self.tokenizer.eos_token))
        return self.guard.document(text)

    def encode(self, parsed: list[str], counts: Counts) -> dict[str, list[Any]]:
        """Documents, or their blocks; `truncated` counts documents whose last, lone token is left out."""
        found: Ragged = []
        encodings = encode_batch(self.tokenizer, parsed, add_special_tokens=True)
        for text, encoding in zip(parsed, encodings, strict=True):
            counts.note_texts([text])
            blocks = self._blocks(self._ended(encoding.ids), counts)
            if not blocks:
                counts.drop("fewer than 2 tokens")
                continue
            counts.used += 1
            counts.tokens += sum(map(len, blocks))
            counts.trained_tokens += sum(map(len, blocks)) - len(blocks)
            found.extend(blocks)
        lengths = [len(ids) for ids in found]
        return {"input_ids": found, "labels": found, "length": lengths, "trained": [length - 1 for length in lengths]}

    def _ended(self, ids: list[int]) -> np.ndarray:
        # Some tokenizers append EOS themselves.
        if ids[-1:] != [self.eos]:
            ids = [*ids, self.eos]
        return np.array(ids, dtype=np.int32)

    def _blocks(self, document: np.ndarray, counts: Counts) -> Ragged:
        step = self.block_size or max(len(document), 1)
        blocks = [document[start : start + step] for start in range(0, len(document), step)]
        # A lone token has nothing to predict and nothing that predicts it.
        kept = [block for block in blocks if len(block) >= 2]
        counts.truncated += bool(kept) and len(kept) < len(blocks)
        return kept
