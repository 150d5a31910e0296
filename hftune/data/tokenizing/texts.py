"""Texts for pre-training to token ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from hftune.arguments.training import PTArguments
from hftune.data.readers.files import Row
from hftune.data.records.texts import to_text
from hftune.data.templates.guarded_text import encode_batch
from hftune.data.templates.rendering import Renderer
from hftune.data.templates.turn_token_guard import TurnTokenGuard
from hftune.data.tokenizing.counts import Counts, check_length, require_fast
from hftune.data.tokenizing.encoder import IDS, Encoder, Ragged
from hftune.errors import DataError

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
