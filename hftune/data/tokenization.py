"""Rows to token ids. Every function returns a dataset (int32 columns) and what was used, dropped and truncated."""

from __future__ import annotations

from functools import partial

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hftune.constants import IGNORE_INDEX
from hftune.data.batches import in_batches
from hftune.data.chat import render, render_with_spans, require_chat_template
from hftune.data.encoding import (
    Counts,
    Ids,
    all_dropped,
    check_length,
    encode_with_offsets,
    mask_labels,
    require_fast,
    to_dataset,
)
from hftune.data.pairs import prompts_dataset, tokenize_pairs, tokenize_reward_pairs
from hftune.data.schemas import Conversation, to_conversation, to_text
from hftune.data.sources import Row
from hftune.errors import ArgumentError, DataError

__all__ = [
    "Counts",
    "prompts_dataset",
    "tokenize_chat",
    "tokenize_pairs",
    "tokenize_reward_pairs",
    "tokenize_texts",
]

NO_TARGET = "no trained token within max_length"
TOO_SHORT = "fewer than 2 tokens"


# --- text ---------------------------------------------------------------------------------------------------------


def tokenize_texts(
    rows: list[Row],
    tokenizer: PreTrainedTokenizerBase,
    *,
    block_size: int | None,
    append_eos: bool = True,
    workers: int = 1,
) -> tuple[Dataset, Counts]:
    """Texts for pre-training, each with the tokenizer's own special tokens (such as BOS) and EOS at its end.

    Args:
        block_size: Cut each document into pieces of at most this many tokens; a piece of fewer than 2 is left out.
            None: a document a row, as long as it is, to be packed.
        append_eos: End each document with EOS.

    Returns:
        Columns input_ids and labels (equal), lists of int32.

    Raises:
        DataError: A row without text, no EOS token, or nothing left.
    """
    check_length(block_size, "--block_size")
    if append_eos and tokenizer.eos_token_id is None:
        raise DataError("the tokenizer has no EOS token to end documents with", fix="Set its eos_token.")
    encode = partial(_encode_texts, tokenizer=tokenizer, eos=tokenizer.eos_token_id if append_eos else None)
    documents: list[Ids] = in_batches(encode, rows, workers)
    counts = Counts(rows=len(rows))
    blocks = _pieces(documents, block_size, counts)
    if not blocks:
        raise DataError("no document has 2 tokens or more", fix="Give more text.")
    counts.tokens = sum(map(len, blocks))
    counts.trained_tokens = counts.tokens - len(blocks)
    return to_dataset({"input_ids": blocks, "labels": blocks}), counts


def _encode_texts(rows: list[Row], tokenizer: PreTrainedTokenizerBase, eos: int | None) -> list[Ids]:
    """Token ids of each text, ended with `eos` where given."""
    texts = [to_text(row) for row in rows]
    encoded: list[Ids] = tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]
    return [ids if eos is None or ids[-1:] == [eos] else [*ids, eos] for ids in encoded]


def _pieces(documents: list[Ids], block_size: int | None, counts: Counts) -> list[Ids]:
    """Each document cut on its own; `truncated` counts documents whose last, lone token is left out."""
    blocks = []
    for document in documents:
        size = block_size or len(document) or 1
        pieces = [document[start : start + size] for start in range(0, len(document), size)]
        kept = [piece for piece in pieces if len(piece) >= 2]
        if not kept:
            counts.drop(TOO_SHORT)
            continue
        counts.used += 1
        counts.truncated += len(kept) < len(pieces)
        blocks.extend(kept)
    return blocks


# --- conversations ------------------------------------------------------------------------------------------------


def tokenize_chat(
    rows: list[Row],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None,
    train_on_inputs: bool = False,
    last_turn_only: bool = False,
    workers: int = 1,
) -> tuple[Dataset, Counts]:
    """Conversations for SFT, with labels on what the assistant says.

    Each conversation is tokenised once, as a whole. What is longer than `max_length` loses its end; no EOS is added
    there. A record without a trained token in what is left is dropped and counted.

    Args:
        max_length: None: nothing is truncated.
        train_on_inputs: Train on every token instead.
        last_turn_only: Train only on the last assistant turn.

    Returns:
        Columns input_ids and labels (IGNORE_INDEX where not trained), lists of at most `max_length` int32.

    Raises:
        DataError: A record that cannot be read or located in the template's text, or nothing left.
    """
    check_length(max_length, "--max_length")
    if train_on_inputs and last_turn_only:
        raise ArgumentError(
            "train on everything, or on the last turn only?",
            place="--train_on_inputs, --last_turn_only",
            fix="Give one of them.",
        )
    require_fast(tokenizer)
    require_chat_template(tokenizer)
    encode = partial(_encode_chats, tokenizer=tokenizer, whole=train_on_inputs, last_turn_only=last_turn_only)
    counts = Counts(rows=len(rows))
    columns: dict[str, list[Ids]] = {"input_ids": [], "labels": []}
    for ids, labels in in_batches(encode, rows, workers):
        kept = labels[:max_length]
        # The first token has no token before it that could predict it, so a label there is never trained.
        trained = sum(label != IGNORE_INDEX for label in kept[1:])
        if not trained:
            counts.drop(NO_TARGET)
            continue
        columns["input_ids"].append(ids[:max_length])
        columns["labels"].append(kept)
        counts.used += 1
        counts.truncated += len(kept) < len(ids)
        counts.tokens += len(kept)
        counts.trained_tokens += trained
    if not counts.used:
        raise all_dropped(counts, "--max_length")
    return to_dataset(columns), counts


def _encode_chats(
    rows: list[Row], tokenizer: PreTrainedTokenizerBase, whole: bool, last_turn_only: bool
) -> list[tuple[Ids, Ids]]:
    """(input_ids, labels) of each row, untruncated."""
    texts, all_spans = [], []
    for row in rows:
        conversation = to_conversation(row)
        with_spans = chat_text(conversation, tokenizer, whole=whole, last_turn_only=last_turn_only)
        texts.append(with_spans[0])
        all_spans.append(with_spans[1])
    encoded = encode_with_offsets(texts, tokenizer)
    return [(ids, mask_labels(ids, offsets, spans)) for (ids, offsets), spans in zip(encoded, all_spans, strict=True)]


def chat_text(
    conversation: Conversation, tokenizer: PreTrainedTokenizerBase, *, whole: bool, last_turn_only: bool
) -> tuple[str, list[tuple[int, int]]]:
    """The text and its trained spans; errors name the record."""
    try:
        if whole:
            text = render(conversation.messages, tokenizer, conversation.tools)
            return text, [(0, len(text))]
        return render_with_spans(conversation.messages, tokenizer, conversation.tools, last_turn_only=last_turn_only)
    except DataError as error:
        raise DataError(error.cause, place=conversation.origin, fix=error.fix) from error
