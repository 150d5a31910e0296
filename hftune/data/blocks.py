"""Blocks of tokens for pre-training, from tokenised folders, by number: one dataset for any world.

`BlockDataset[i]` is the i-th block of the whole run, whoever asks. The DataLoader's usual batch sampler shards the
numbers over ranks and workers, so that

- the blocks of a step are the same for every number of processes, workers and accumulation steps at the same global
  batch size, and across an interruption;
- every document comes once in each epoch of its source, whatever changes on the way;
- what has been trained is a number (steps times global batch), not what was fetched ahead.

The order depends on the sources, their weights and the block size: a run that resumes has those that it began with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from hftune.constants import IGNORE_INDEX
from hftune.data.documents import Documents, Segment, SourceOrder
from hftune.data.mixture import Schedule
from hftune.errors import DataError, shown

LOGICAL_SHARDS = 2048
"""Enough for a window of some hundred pieces from all over a large corpus, few enough to sum up in no time."""

SHUFFLE_BUFFER = 100_000
"""Documents; a window's index takes 16 bytes each."""

STATE_KIND, STATE_VERSION = "blocks", 1

Example = dict[str, torch.Tensor]

Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Settings:
    """What, apart from its documents, decides the order of a source. Must not change while a source is in use."""

    seed: int = 42
    logical_shards: int = LOGICAL_SHARDS
    shuffle_buffer: int = SHUFFLE_BUFFER


class BlockDataset(torch.utils.data.Dataset[Example]):
    """The endless run of blocks over some sources; `len` is that of an epoch.

    A block holds `block_size` tokens of one source: documents in the order of training, cut where a block ends. No
    token is left out and none is added; the block after the last of an epoch begins with what was left over.

    Args:
        sources: Tokenised documents, each under a name of its own.
        block_size: Tokens a block.
        shares: A whole number a source (see `as_shares`); None: by number of tokens, so that all epochs end together.
        settings: Seed, shards and buffer.
        vocabulary: Number of token ids that the model knows; larger ids in the data are an error. None: not checked.
        epoch_blocks: Blocks an epoch is said to have; None: as many as all tokens of all sources make.
    """

    def __init__(
        self,
        sources: Sequence[Documents],
        block_size: int,
        shares: Sequence[int] | None = None,
        settings: Settings | None = None,
        vocabulary: int | None = None,
        epoch_blocks: int | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.block_size = block_size
        self.vocabulary = vocabulary
        self.sources = [
            SourceOrder(
                source,
                seed=self.settings.seed,
                shards=self.settings.logical_shards,
                buffer=self.settings.shuffle_buffer,
            )
            for source in sources
        ]
        self.names = [source.name for source in sources]
        self.schedule = Schedule(shares or [source.tokens for source in sources])
        # Rounded up: the block after the last of an epoch begins with what was left over.
        self.epoch_blocks = epoch_blocks or -(-self.tokens // block_size)
        self.length = self.epoch_blocks

    @property
    def tokens(self) -> int:
        """Tokens of one epoch of every source."""
        return sum(source.tokens for source in self.sources)

    def __len__(self) -> int:
        return self.length

    def round_to_steps(self, blocks_per_step: int) -> None:
        """Round `len` up to whole steps; the last step of an epoch begins the next one instead of being short."""
        # Otherwise the last step of an epoch would be short, and which blocks share a step would depend on the world.
        self.length = -(-self.epoch_blocks // blocks_per_step) * blocks_per_step

    def __getitem__(self, block: int) -> Example:
        """Block `block` of the run, as `join_pieces` returns it."""
        source, segments = self.segments(block)
        return join_pieces(self.sources[source].documents, segments, self.vocabulary)

    def segments(self, block: int) -> tuple[int, list[Segment]]:
        """The source of a block, and the pieces of its documents that make it up."""
        source, rank = self.schedule.locate(block)
        return source, self.sources[source].segments(rank * self.block_size, self.block_size)

    def positions(self, blocks: int) -> dict[str, int]:
        """Tokens of each source in the first `blocks` blocks of the run, over all its epochs."""
        given = self.schedule.before(blocks)
        return {name: count * self.block_size for name, count in zip(self.names, given, strict=True)}

    def epochs(self, blocks: int) -> dict[str, float]:
        """How often each source has been gone through after `blocks` blocks: 1.5 is one and a half times."""
        positions = self.positions(blocks)
        return {name: positions[name] / source.tokens for name, source in zip(self.names, self.sources, strict=True)}

    def state(self, blocks: int) -> dict[str, Any]:
        """What a checkpoint after `blocks` trained blocks must hold, as plain values for JSON."""
        positions = self.positions(blocks)
        return {
            "kind": STATE_KIND,
            "version": STATE_VERSION,
            "blocks": blocks,
            "block_size": self.block_size,
            "settings": asdict(self.settings),
            "sources": {
                name: {"share": share, "position": positions[name], **_identity(source)}
                for name, share, source in zip(self.names, self.schedule.shares, self.sources, strict=True)
            },
        }

    def check(self, state: dict[str, Any]) -> None:
        """Look whether the blocks of a run that stopped at `state` are those of this data set.

        Raises:
            DataError: The checkpoint is of other data, or its blocks would come in another order.
        """
        now = self.state(state.get("blocks", 0))
        # As text: the order of the sources decides which of two that are due at once comes first.
        if changed := [key for key in now if json.dumps(state.get(key)) != json.dumps(now[key])]:
            key = changed[0]
            raise DataError(
                f"the data have changed since the checkpoint: {key} {shown(state.get(key), 300)} then, "
                f"{shown(now[key], 300)} now",
                place="--resume_from_checkpoint",
                fix="Give the folders, --weights, --block_size, --data_seed (or --seed), --logical_shards and "
                "--shuffle_buffer that the run began with, or start anew from the checkpoint's weights.",
            )


def _identity(source: SourceOrder) -> dict[str, Any]:
    documents = source.documents
    return {"documents": len(documents), "tokens": documents.tokens, "layout": documents.layout(source.boundaries)}


class HeldOutBlocks(torch.utils.data.Dataset[Example]):
    """Every token of one source once, as it lies on disk, in blocks; the last one is as short as it comes out."""

    def __init__(self, documents: Documents, block_size: int, vocabulary: int | None = None) -> None:
        self.order = SourceOrder(documents, seed=0, shards=1, buffer=0)
        self.block_size, self.vocabulary = block_size, vocabulary

    def __len__(self) -> int:
        return -(-self.order.tokens // self.block_size)  # noqa: PLE0303  (rounded up, so never below 0)

    def __getitem__(self, block: int) -> Example:
        """Block `block`, as `join_pieces` returns it."""
        if not 0 <= block < len(self):
            raise IndexError(block)
        start = block * self.block_size
        segments = self.order.segments(start, min(self.block_size, self.order.tokens - start))
        return join_pieces(self.order.documents, segments, self.vocabulary)


def join_pieces(documents: Documents, segments: list[Segment], vocabulary: int | None = None) -> Example:
    """Pieces of documents as one example, in which nothing needs to be seen or predicted across a boundary.

    Args:
        vocabulary: Number of token ids that the model knows; None: not checked.

    Returns:
        int32 tensors, as `join_columns` makes them.

    Raises:
        DataError: A token id that the model does not know, with folder and document.
    """
    parts = [documents.read(*segment) for segment in segments]
    # The embedding would read outside of its table: on a GPU an assertion without a name, on a CPU an IndexError.
    if vocabulary is not None:
        for segment, part in zip(segments, parts, strict=True):
            check_tokens(documents, segment.document, part, vocabulary)
    pieces = [{"input_ids": part.astype(np.int32, copy=False)} for part in parts]
    columns = join_columns([piece | {"labels": piece["input_ids"]} for piece in pieces])
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def join_columns(pieces: Sequence[Columns]) -> Columns:
    """Pieces of examples as one, in which nothing needs to be seen or predicted across a boundary.

    Args:
        pieces: input_ids, labels and what else there is a token, each at least one token long.

    Returns:
        The columns, with labels IGNORE_INDEX for the first token of each piece, whose predecessor is not there; int32
        position_ids (from 0 in each piece); and seq_lengths, the tokens of each piece.
    """
    columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    # int32 is what the attention kernels take; a block has far fewer than 2**31 tokens.
    lengths = np.array([len(piece["input_ids"]) for piece in pieces], dtype=np.int32)
    starts = np.cumsum(lengths, dtype=np.int32) - lengths
    # A document's continuation in the next block loses its first target, too: its context is in another row.
    columns["labels"][starts] = IGNORE_INDEX
    positions = np.arange(lengths.sum(), dtype=np.int32) - np.repeat(starts, lengths)
    return {**columns, "position_ids": positions, "seq_lengths": lengths}


def check_tokens(documents: Documents, document: int, ids: np.ndarray, vocabulary: int) -> None:
    """Refuse tokens of a document that the model or its tokenizer does not know.

    Raises:
        DataError: With folder and document.
    """
    least, most = int(ids.min()), int(ids.max())
    if not 0 <= least <= most < vocabulary:
        raise DataError(
            f"token id {least if least < 0 else most} of document {document} is not in the vocabulary of {vocabulary}",
            place=str(documents.folder),
            fix="Tokenise the data with this model's tokenizer.",
        )


class BlockSampler(torch.utils.data.Sampler[int]):
    """Numbers of the blocks of an epoch, in order.

    Args:
        length: Blocks an epoch.
        origin: The block that epoch 0 would begin at; other than 0 only where the batch size changed on the way.
    """

    def __init__(self, length: int, origin: int = 0) -> None:
        # The Trainer resumes by epoch and step of an epoch; the origin turns these numbers into blocks of the run.
        self.length, self.origin, self.epoch = length, origin, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration gives."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        start = self.origin + self.epoch * self.length
        return iter(range(start, start + self.length))
