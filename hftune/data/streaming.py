"""Raw records tokenised while training: no cache, no waiting, and every record once an epoch.

Records have positions: those of an epoch in the order of the files, shuffled within windows of neighbouring ones,
epoch after epoch. What stands at a position depends on (seed, epoch, window) alone; groups of neighbouring positions
go to the ranks in turn. So the ranks need not talk to each other, and how many workers a rank has changes nothing:
they tokenise its records, which come back in order, and the rank itself makes batches or blocks of them.

Each example carries where its rank stands once it is trained, and the trainer writes down those that were *trained*,
not those that were fetched. A checkpoint holds that place of each rank. On resuming in the same world every rank goes
on behind its own; in another one what is left is dealt anew.

Against tokenised folders (`blocks.py`) it costs the tokenising while training, mixes only records of one window, knows
no length, and which blocks share a step depends on the world. Every worker reads all records, but tokenises only its
own; where records give no example, or one gives several, ranks do not end an epoch in the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain, count, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info

from hftune.constants import IGNORE_INDEX, ORIGIN
from hftune.data.blocks import Columns, join_columns
from hftune.data.files import Chunk, Row, RowOrError
from hftune.data.mixture import permutation
from hftune.errors import DataError

STATE_KIND = "stream"

_TOGETHER = 16
"""Records that a worker hands over at once."""


@dataclass(frozen=True)
class StreamSettings:
    """What decides which example stands where. Must not change when a run resumes.

    Attributes:
        data: A fingerprint of the files, the tokenizer and all that `encode` depends on.
        seed: Of the order of the records in a window; None keeps that of the files.
        chunks: Chunks a window.
        block_size: Join examples into blocks of so many tokens; None: leave them as they are.
    """

    data: str
    seed: int | None = 42
    chunks: int = 8
    block_size: int | None = None


class Window(NamedTuple):
    """Neighbouring records that are shuffled together: one of an epoch, `start` records of the run before it."""

    epoch: int = 0
    number: int = 0
    start: int = 0


class End(NamedTuple):
    """The first record that a rank has not trained to its end, and how much of it was (examples, in blocks tokens)."""

    position: int = 0
    begun: int = 0


class Origin(NamedTuple):
    """What is known once an example is trained.

    Attributes:
        window: Of its last record.
        end: Where its rank stands then.
        dropped: Records dropped since the example before it.
        tokens: Its tokens with a loss.
    """

    window: Window
    end: End
    dropped: int
    tokens: int


@dataclass
class Progress:
    """Where a rank stands, and what it has dropped and trained since the run began or resumed."""

    window: Window = field(default_factory=Window)
    end: End = field(default_factory=End)
    dropped: int = 0
    tokens: int = 0

    def record(self, origins: Iterable[Origin]) -> None:
        """Count examples as trained, in their order."""
        for origin in origins:
            self.window, self.end = origin.window, origin.end
            self.dropped += origin.dropped
            self.tokens += origin.tokens


@dataclass
class Trained:
    """Which records the ranks of a world have trained: each its own, up to its end.

    Attributes:
        group: Neighbouring records that went to one rank; the next ones went to the next rank.
        ends: By rank.
    """

    group: int
    ends: list[End]

    def end(self, position: int) -> End:
        """Of the rank that a record belonged to."""
        return self.ends[position // self.group % len(self.ends)]


class Record(NamedTuple):
    """A record of the stream, tokenised; without an example if it was dropped."""

    window: Window
    position: int
    examples: list[Columns]


class StreamingDataset(torch.utils.data.IterableDataset[dict[str, Any]]):
    """This process's share of an endless stream of examples. For a DataLoader without workers: it has its own.

    Args:
        chunks: Gives all chunks of an epoch, the same ones in the same order each time; picklable where workers are
            spawned.
        encode: A row to its examples, each of int32 columns (input_ids, labels, ...); picklable likewise. A row without
            an example counts as dropped.
        settings: See there.
        rank: Of this process.
        world: Number of processes.
        group: Neighbouring records that go to one rank. With as many as a micro batch has, and an example each, a step
            has the same records in any world.
        drop_bad_records: Count bad records and continue; otherwise the first one ends the run.

    Attributes:
        loading: Options of the DataLoader that reads and tokenises (`num_workers`, `prefetch_factor`, ...).
    """

    def __init__(
        self,
        chunks: Callable[[], Iterable[Chunk]],
        encode: Callable[[Row], list[Columns]],
        settings: StreamSettings,
        *,
        rank: int = 0,
        world: int = 1,
        group: int = 1,
        drop_bad_records: bool = False,
    ) -> None:
        self.chunks, self.encode, self.settings = chunks, encode, settings
        self.rank, self.world, self.group = rank, world, group
        self.drop_bad_records = drop_bad_records
        self.loading: dict[str, Any] = {}
        self.progress = Progress()
        self._earlier: list[Trained] = []  # by other worlds
        self._resumed = {"dropped": 0, "tokens": 0}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Examples: the columns of `encode`, or blocks, and ORIGIN, an `Origin`.

        Raises:
            DataError: A bad record, or no example in all that a worker was given.
        """
        records = chain.from_iterable(DataLoader(_Tokenised(self), batch_size=None, collate_fn=list, **self.loading))
        size = self.settings.block_size
        return self._singly(records) if size is None else self._blocks(records, size)

    def tokenised(self) -> Iterator[list[Record]]:
        """The records of this rank that were not trained yet, some at a time; in a worker, those of its turns.

        Raises:
            DataError: See `__iter__`.
        """
        worker = get_worker_info()
        turn, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        turns, fruitless, begun = count(), 0, None
        for window, rows in self._windows():
            if window.number == 0:
                # A whole epoch without an example would repeat for ever, without a step and without a word.
                if begun is not None and fruitless >= window.start - begun:
                    cause = f"no record of the data gives an example ({fruitless} rows were dropped)"
                    raise DataError(cause, place="--streaming", fix="Look at the data with `hftune preview`.")
                begun = window.start
            own = [at for at in range(window.start, window.start + len(rows)) if self._is_left(at)]
            for first in range(0, len(own), _TOGETHER):
                if next(turns) % workers == turn:
                    places = own[first : first + _TOGETHER]
                    found = [Record(window, at, self._examples(rows[at - window.start])) for at in places]
                    fruitless = 0 if any(record.examples for record in found) else fruitless + len(found)
                    yield found

    def state(self, everyone: list[Progress]) -> dict[str, Any]:
        """What a checkpoint must hold, as plain values for JSON.

        Args:
            everyone: The progress of all ranks, in their order.
        """
        window = min(progress.window for progress in everyone)
        # What every rank has left behind is trained, whoever it was dealt to.
        trained = [one for one in self._earlier if max(one.ends) > End(window.start)]
        trained.append(Trained(self.group, [progress.end for progress in everyone]))
        return {
            "kind": STATE_KIND,
            "settings": asdict(self.settings),
            "window": window,
            "trained": [asdict(one) for one in trained],
            "totals": self.totals(everyone),
        }

    def totals(self, everyone: list[Progress]) -> dict[str, int]:
        """Records dropped and tokens trained by all ranks, from the beginning of the run on."""
        return {
            "dropped": self._resumed["dropped"] + sum(progress.dropped for progress in everyone),
            "tokens": self._resumed["tokens"] + sum(progress.tokens for progress in everyone),
        }

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
        self._resumed = dict(state["totals"])
        self._earlier = [Trained(one["group"], [End(*end) for end in one["ends"]]) for one in state["trained"]]
        self.progress = Progress(Window(*state["window"]))
        last = self._earlier[-1]
        if (last.group, len(last.ends)) == (self.group, self.world):
            self.progress.end = self._earlier.pop().ends[self.rank]

    def _windows(self) -> Iterator[tuple[Window, list[RowOrError]]]:
        """The windows from the one at hand on, each with its records in their order."""
        first = self.progress.window
        start = first.start
        for epoch in count(first.epoch):
            chunks = iter(self.chunks())
            for number in count():
                portion = list(islice(chunks, self.settings.chunks))
                if not portion:
                    break
                if (epoch, number) < first[:2]:
                    continue
                rows = self._shuffled([row for chunk in portion for row in chunk.rows()], epoch, number)
                yield Window(epoch, number, start), rows
                start += len(rows)
            if number == 0:
                raise DataError("no data", place="--streaming", fix="Look at the data with `hftune preview`.")

    def _shuffled(self, rows: list[RowOrError], epoch: int, window: int) -> list[RowOrError]:
        if self.settings.seed is None:
            return rows
        # SeedSequence takes no negative numbers.
        return [rows[place] for place in permutation(len(rows), self.settings.seed & 0xFFFFFFFF, epoch, window)]

    def _is_left(self, position: int) -> bool:
        """Whether this rank has yet to train a record."""
        own = position // self.group % self.world == self.rank
        return own and all(position >= end.position for end in self._ends(position))

    def _begun(self, position: int) -> int:
        """How much of a record was trained already."""
        return max((end.begun for end in self._ends(position) if end.position == position), default=0)

    def _ends(self, position: int) -> list[End]:
        """How far those who were dealt this record came."""
        return [self.progress.end, *(one.end(position) for one in self._earlier)]

    def _examples(self, row: RowOrError) -> list[Columns]:
        """What a record gives; nothing if it is dropped."""
        try:
            if isinstance(row, DataError):
                raise row
            return self.encode(row)
        except DataError:
            if not self.drop_bad_records:
                raise
            return []

    def _singly(self, records: Iterable[Record]) -> Iterator[dict[str, Any]]:
        """Every example as it is."""
        dropped = 0
        for window, position, examples in records:
            dropped += not examples
            for number in range(self._begun(position), len(examples)):
                end = _end(position, number + 1, len(examples))
                yield _with_origin(examples[number], window, end, dropped)
                dropped = 0

    def _blocks(self, records: Iterable[Record], size: int) -> Iterator[dict[str, Any]]:
        """Examples one after the other, cut into blocks of `size` tokens, over the ends of windows and epochs."""
        pieces: list[Columns] = []
        room, dropped = size, 0
        for window, position, examples in records:
            dropped += not examples
            lengths = [len(example["input_ids"]) for example in examples]
            begun, before = self._begun(position), 0
            for example, length in zip(examples, lengths, strict=True):
                at = min(max(begun - before, 0), length)
                while at < length:
                    cut = min(at + room, length)
                    pieces.append({name: column[at:cut] for name, column in example.items()})
                    room, at = room - (cut - at), cut
                    if not room:
                        end = _end(position, before + at, sum(lengths))
                        yield _with_origin(join_columns(pieces), window, end, dropped)
                        pieces, room, dropped = [], size, 0
                before += length


class _Tokenised(torch.utils.data.IterableDataset[list[Record]]):
    """The records of a rank, for the workers of its DataLoader."""

    def __init__(self, stream: StreamingDataset) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[list[Record]]:
        return self.stream.tokenised()


def _end(position: int, trained: int, of: int) -> End:
    """Where a rank stands with so much of a record trained."""
    return End(position + 1) if trained == of else End(position, trained)


def _with_origin(example: Columns, window: Window, end: End, dropped: int) -> dict[str, Any]:
    # The first label is never trained: nothing comes before it.
    tokens = int((example["labels"][1:] != IGNORE_INDEX).sum())
    # A copy: the arrays may be views of a batch.
    columns = {name: torch.tensor(np.asarray(column)) for name, column in example.items()}
    return {**columns, ORIGIN: Origin(window, end, dropped, tokens)}
