"""Raw records tokenised while training: no cache, no waiting, and still every record once an epoch.

Files are cut into portions of neighbouring records. What becomes of a portion (tokenised, shuffled, joined into blocks
where asked) depends on its number and epoch alone, so that any worker of any rank may do it, and the place of an
example is three numbers: epoch, portion, example. Each example carries them, and the trainer writes down those that
were *trained*, not those that were fetched. On resuming, in any world, the portions that are not done are
assigned again; only the portions under way are tokenised once more.

Against tokenised folders (`blocks.py`) it costs the tokenising while training, mixes only records of one portion,
leaves a short block at the end of each portion, knows no length, and which examples share a step depends on the
world. Every worker looks for the boundaries of all portions, but parses and tokenises only its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from hftune.constants import IGNORE_INDEX
from hftune.data.corpus.progress import Origin, Progress, from_dict
from hftune.data.permutation import permutation
from hftune.data.readers.base import Chunk, Row
from hftune.errors import DataError

ORIGIN = "stream_origin"
"""The column with an example's `Origin`."""

STATE_KIND = "stream"

Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class StreamSettings:
    """What decides which examples a portion gives. Must not change when a run resumes.

    Attributes:
        data: A fingerprint of the files, the tokenizer and all that `encode` depends on.
        seed: Of the order of the examples in a portion; None keeps that of the files.
        chunks: Chunks a portion.
        block_size: Join examples into blocks of so many tokens; None: leave them as they are.
    """

    data: str
    seed: int | None = 42
    chunks: int = 8
    block_size: int | None = None


class StreamingDataset(torch.utils.data.IterableDataset[dict[str, Any]]):
    """This process's (and DataLoader worker's) share of an endless stream of examples.

    Args:
        chunks: Gives all chunks of an epoch, the same ones in the same order each time; picklable where workers are
            spawned.
        encode: Rows to int32 columns (input_ids, labels, ...), at most one example a row, in their order; picklable
            likewise. A row without an example counts as dropped.
        settings: See there.
        rank: Of this process.
        world: Number of processes.
        drop_bad_records: Count bad records and continue; otherwise the first one ends the run.
    """

    def __init__(
        self,
        chunks: Callable[[], Iterable[Chunk]],
        encode: Callable[[list[Row]], list[Columns]],
        settings: StreamSettings,
        *,
        rank: int = 0,
        world: int = 1,
        drop_bad_records: bool = False,
    ) -> None:
        self.chunks, self.encode, self.settings = chunks, encode, settings
        self.rank, self.world = rank, world
        self.drop_bad_records = drop_bad_records
        self.progress = Progress()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Examples: the columns of `encode`, or of `join_examples`, and ORIGIN, an `Origin`.

        Raises:
            DataError: A bad record, or no example in all that this worker was given.
        """
        # The DataLoader has no sampler for endless data; each worker of each rank takes its share by counting.
        worker = get_worker_info()
        workers = 1 if worker is None else worker.num_workers
        share, shares = self.rank * workers + (0 if worker is None else worker.id), self.world * workers
        assigned, fruitless, dropped = 0, 0, 0
        for epoch in count(self._first_epoch()):
            portions = 0
            for number, portion in enumerate(self._portions()):
                portions += 1
                # Before counting, so that after resuming in another world the rest is shared evenly.
                if self.progress.is_done(epoch, number):
                    continue
                assigned += 1
                # Assigned across the ends of epochs: with fewer portions than workers none of them waits for ever.
                if (assigned - 1) % shares != share:
                    continue
                examples, lost = self._examples(epoch, number, portion)
                dropped += lost
                yield from self._with_origins(examples, epoch, number, dropped)
                # Rows dropped since the last example travel with the next one, so that a portion without any is
                # counted as well.
                fruitless, dropped = (0, 0) if examples else (fruitless + 1, dropped)
            # A whole epoch without an example would repeat for ever, without a step and without a word.
            if portions == 0 or fruitless >= portions:
                raise DataError(
                    f"no record of the data gives an example ({dropped} rows were dropped)" if portions else "no data",
                    place="--streaming",
                    fix="Look at the data with `hftune preview`.",
                )

    def state(self, progress: Progress) -> dict[str, Any]:
        """What a checkpoint must hold, as plain values for JSON.

        Args:
            progress: Of all ranks together (`hftune.data.corpus.progress.merged`).
        """
        return {"kind": STATE_KIND, "settings": asdict(self.settings), **progress.to_dict()}

    def resume(self, state: dict[str, Any]) -> None:
        """Resume with what was not trained when `state` was taken.

        Raises:
            DataError: The data, or what is made of them, have changed.
        """
        if state.get("kind") != STATE_KIND or state["settings"] != asdict(self.settings):
            raise DataError(
                f"the data or their settings have changed since the checkpoint: {state.get('settings')} then, "
                f"{asdict(self.settings)} now",
                place="--resume_from_checkpoint",
                fix="Give the same files, tokenizer, lengths and seed, or start anew from the checkpoint's weights.",
            )
        self.progress = from_dict(state)

    def _first_epoch(self) -> int:
        """The first epoch that anything was trained of. It may be done; seeing that takes a look at its boundaries."""
        begun = {epoch for epoch, _ in self.progress.begun} | set(self.progress.done)
        return min(begun, default=0)

    def _portions(self) -> Iterator[list[Chunk]]:
        chunks = iter(self.chunks())
        while portion := list(islice(chunks, self.settings.chunks)):
            yield portion

    def _examples(self, epoch: int, number: int, portion: list[Chunk]) -> tuple[list[Columns], int]:
        """What a portion gives, and how many of its rows were dropped."""
        rows, bad = [], 0
        for row in (row for chunk in portion for row in chunk.rows()):
            if isinstance(row, Row):
                rows.append(row)
            elif self.drop_bad_records:
                bad += 1
            else:
                raise row
        examples = self.encode(rows) if rows else []
        dropped = bad + len(rows) - len(examples)
        if self.settings.seed is not None:
            # SeedSequence takes no negative numbers.
            seed = self.settings.seed & 0xFFFFFFFF
            examples = [examples[place] for place in permutation(len(examples), seed, epoch, number)]
        # After shuffling: blocks hold documents of the whole portion then, not neighbours in the file.
        if self.settings.block_size is not None:
            examples = join_examples(examples, self.settings.block_size)
        return examples, dropped

    def _with_origins(
        self, examples: list[Columns], epoch: int, portion: int, dropped: int
    ) -> Iterator[dict[str, Any]]:
        """The examples of a portion that were not trained yet, each with its origin."""
        for number in range(self.progress.begun.get((epoch, portion), 0), len(examples)):
            example, last = examples[number], int(number == len(examples) - 1)
            # The first label is never trained: nothing comes before it.
            tokens = int((example["labels"][1:] != IGNORE_INDEX).sum())
            origin = Origin(epoch, portion, number, last, dropped, tokens)
            # A copy: the arrays are views of a batch, which a worker's shared memory would carry along as a whole.
            columns = {name: torch.tensor(np.asarray(column)) for name, column in example.items()}
            yield {**columns, ORIGIN: origin}


def join_examples(examples: list[Columns], block_size: int) -> list[Columns]:
    """Examples one after the other, cut into blocks, in which nothing needs to be seen or predicted across a boundary.

    Args:
        examples: input_ids and labels of one length each.
        block_size: Tokens a block; the last one is as short as it comes out.

    Returns:
        int32 input_ids, labels (IGNORE_INDEX for the first token of each piece), position_ids (from 0 in each piece)
        and seq_lengths, the tokens of each piece. A last block of a single token, which trains nothing, is left out.
    """
    filled = [example for example in examples if len(example["input_ids"])]
    if not filled:
        return []
    ids = np.concatenate([example["input_ids"] for example in filled]).astype(np.int32, copy=False)
    labels = np.concatenate([example["labels"] for example in filled]).astype(np.int32, copy=False)
    lengths = [len(example["input_ids"]) for example in filled]
    # Where a document begins, and where a block cuts one: in both places nothing before it is seen.
    starts = np.union1d(np.cumsum([0, *lengths[:-1]]), np.arange(0, len(ids), block_size))
    labels[starts] = IGNORE_INDEX
    positions = np.arange(len(ids), dtype=np.int32) - np.repeat(starts, np.diff([*starts, len(ids)])).astype(np.int32)
    blocks = []
    for begin in range(0, len(ids), block_size):
        end = min(begin + block_size, len(ids))
        inside = starts[(starts >= begin) & (starts < end)]
        sizes = np.diff([*inside, end]).astype(np.int32)
        cut = {"input_ids": ids[begin:end], "labels": labels[begin:end], "position_ids": positions[begin:end]}
        blocks.append({**cut, "seq_lengths": sizes})
    return blocks[:-1] if len(blocks[-1]["input_ids"]) < 2 else blocks
