"""One chunk of records: what is wrong with each of them by itself, and the numbers by which they are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hftune.data.formats import take_unread
from hftune.data.readers.base import Chunk, Row, RowOrError
from hftune.data.readers.columns import apply_columns, columns_found
from hftune.errors import DataError, shown
from hftune.secrets import redact
from hftune.tools.checking import texts
from hftune.tools.checking.leaks import LeakIndex
from hftune.tools.checking.near import BANDS, ROWS, shingles_of, signature_of
from hftune.tools.checking.records import Record, to_record
from hftune.tools.checking.result import (
    BOILERPLATE,
    CONTROL,
    CUT,
    ENCODING,
    LEAK,
    REFUSAL,
    SECRET,
    UNUSABLE,
    Finding,
    mask_of,
)
from hftune.tools.checking.tally import Tally

ABOUT = np.dtype(
    [
        ("source", "<u4"),  # number of the file
        ("line", "<u8"),
        ("exact", "<u8"),
        ("shingles", "<u4"),
        ("kinds", "<u4"),
        ("signature", "<u4", (BANDS * ROWS,)),
    ]
)
"""What is kept of each record until all were read."""


@dataclass
class Scanned:
    """What is known of the records of a chunk.

    Attributes:
        about: (n,) of `ABOUT`; the file's number is for the parent to fill in.
        found: What is wrong.
        tally: Counts.
        columns: Of those that were to be renamed, which were met.
    """

    about: np.ndarray
    found: list[Finding]
    tally: Tally
    columns: set[str]


@dataclass
class Scanner:
    """Scans chunks, in any process.

    Args:
        columns: Our names of columns -> those in the data.
        leaks: Where texts of the evaluation data are looked for; None without any.
        tokenizer: Counts tokens; None: they are not counted.
    """

    columns: Mapping[str, str]
    leaks: LeakIndex | None = None
    tokenizer: Any = None

    def __call__(self, chunk: Chunk, *, compared_only: bool = False) -> Scanned:
        """Read and scan the records of a chunk.

        Args:
            compared_only: Look at nothing but what is compared with other records, and leaks.
        """
        rows = [(row, *place_of(row)) for row in chunk.rows()]
        take_unread()  # what is not read of records is told by `hftune preview`
        found = Scanned(np.zeros(len(rows), ABOUT), [], Tally(), set())
        whole = []
        for number, (row, file, line) in enumerate(rows):
            told: list[tuple[str, str]] = []
            try:
                record = self._record(row, found)
                told += self._compare(record, found.about[number], found.tally)
                whole += [] if compared_only else [record.whole]
                told += [] if compared_only else faults(record)
            except DataError as error:
                # Causes quote the record; of a very long quotation only the beginning is looked through.
                told += [] if compared_only else [(UNUSABLE, f"{error.kind}: {shown(redact(error.cause[:1000]), 120)}")]
            found.about[number]["line"], found.about[number]["kinds"] = line, mask_of({kind for kind, _ in told})
            found.found += [Finding(kind, file, line, reason) for kind, reason in told]
        # Of a file that cannot be read at all there is no record.
        found.about = found.about[found.about["line"] > 0]
        found.tally.records = len(found.about)
        self._count_tokens(whole, found.tally)
        return found

    def _record(self, row: RowOrError, found: Scanned) -> Record:
        if isinstance(row, DataError):
            raise row
        found.columns |= columns_found(row, self.columns)
        return to_record(apply_columns(row, self.columns))

    def _compare(self, record: Record, about: np.void, tally: Tally) -> Iterator[tuple[str, str]]:
        """Fill in the numbers of a record, and say which text of the evaluation data stands in it."""
        compared = record.compared
        shingles = shingles_of(compared)
        about["exact"], about["shingles"], about["signature"] = record.exact, len(shingles), signature_of(shingles)
        tally.add(record, len(compared))
        if self.leaks and (reason := self.leaks.leak(shingles)):
            yield LEAK, reason

    def _count_tokens(self, whole: list[str], tally: Tally) -> None:
        if self.tokenizer is not None and whole:
            # Without a tokenizer transformers, which takes seconds, is not imported for it.
            from hftune.data.turn_tokens import encode_batch

            for encoding in encode_batch(self.tokenizer, whole, add_special_tokens=False):
                tally.tokens.add(len(encoding.ids))


def faults(record: Record) -> Iterator[tuple[str, str]]:
    """(kind, reason) of what may be wrong with a record."""
    whole = record.whole
    said = "\n".join(text for role, text in record.spoken if role == "assistant")
    # The worse answer of a pair may be as bad as it likes: it is there to be avoided.
    found = [(CUT, texts.cut_off(answer)) for answer in record.answers[:1]]
    found += [(REFUSAL, texts.refusal(answer)) for answer in record.answers[:1]]
    found += [(BOILERPLATE, texts.boilerplate(said)), (CONTROL, texts.control_token(whole))]
    found += [(ENCODING, texts.damage(whole)), (SECRET, texts.secret(whole))]
    yield from ((kind, reason) for kind, reason in found if reason)


def place_of(row: RowOrError) -> tuple[str, int]:
    """File and line of a record, or of its error; line 0 where that is about a whole file."""
    if isinstance(row, Row):
        return row.file, row.line
    file, colon, line = str(row.place).rpartition(":")
    return (file, int(line)) if colon and line.isdecimal() else (str(row.place), 0)
