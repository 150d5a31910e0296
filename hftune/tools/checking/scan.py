"""One chunk of records: what is wrong with each of them by itself, and the numbers by which they are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hftune.data.columns import apply_columns, columns_found
from hftune.data.files import Chunk, Row, RowOrError
from hftune.data.formats import take_unread
from hftune.errors import DataError, shown
from hftune.secrets import MASK, redact
from hftune.tools.checking import records as texts
from hftune.tools.checking.compare import BANDS, ROWS, LeakIndex, shingles_of, signature_of
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

ABOUT = np.dtype(
    [
        ("source", "<u4"),  # number of the file
        ("line", "<u8"),
        ("exact", "<u8"),
        ("shingles", "<u4"),
        ("length", "<u4"),  # characters
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
        kinds: What the records are for, with counts.
        columns: Of those that were to be renamed, which were met.
    """

    about: np.ndarray
    found: list[Finding]
    kinds: Counter[str]
    columns: set[str]


def scan(chunk: Chunk, columns: Mapping[str, str], leaks: LeakIndex | None = None) -> Scanned:
    """Read and scan the records of a chunk, in any process.

    Args:
        columns: Our names of columns -> those in the data.
        leaks: Where texts of the evaluation data are looked for; None without any.
    """
    rows = [(row, *place_of(row)) for row in chunk.rows()]
    take_unread()  # what is not read of records is told by `hftune preview`
    found = Scanned(np.zeros(len(rows), ABOUT), [], Counter(), set())
    for about, (row, file, line) in zip(found.about, rows, strict=True):
        try:
            if isinstance(row, DataError):
                raise row
            found.columns |= columns_found(row, columns)
            record = to_record(apply_columns(row, columns))
            told = [*_compare(record, about, found.kinds, leaks), *faults(record)]
        except DataError as error:
            # Causes quote the record; of a very long quotation only the beginning is looked through.
            cause = redact(error.cause[:1000])
            for token in texts.tokens_in(cause):
                cause = cause.replace(token, MASK)
            told = [(UNUSABLE, f"{error.kind}: {shown(cause, 120)}")]
        about["line"], about["kinds"] = line, mask_of({kind for kind, _ in told})
        found.found += [Finding(kind, file, line, reason) for kind, reason in told]
    # Of a file that cannot be read at all there is no record.
    found.about = found.about[found.about["line"] > 0]
    return found


def _compare(record: Record, about: np.void, kinds: Counter[str], leaks: LeakIndex | None) -> Iterator[tuple[str, str]]:
    """Fill in the numbers of a record, and say which text of the evaluation data stands in it."""
    shingles = shingles_of(record.compared)
    about["exact"], about["shingles"], about["signature"] = record.exact, len(shingles), signature_of(shingles)
    about["length"] = len(record.compared)
    kinds[record.kind] += 1
    if leaks and (reason := leaks.leak(shingles)):
        yield LEAK, reason


def faults(record: Record) -> Iterator[tuple[str, str]]:
    """(kind, reason) of what may be wrong with a record."""
    whole = record.whole
    said = "\n".join(text for role, text in record.spoken if role == "assistant")
    found = [(CUT, texts.cut_off(record.answer)), (REFUSAL, texts.refusal(record.answer))]
    found += [(BOILERPLATE, texts.boilerplate(said)), (CONTROL, texts.control_token(whole))]
    found += [(ENCODING, texts.damage(whole)), (SECRET, texts.secret(whole))]
    yield from ((kind, reason) for kind, reason in found if reason)


def place_of(row: RowOrError) -> tuple[str, int]:
    """File and line of a record, or of its error; line 0 where that is about a whole file."""
    if isinstance(row, Row):
        return row.file, row.line
    file, colon, line = str(row.place).rpartition(":")
    return (file, int(line)) if colon and line.isdecimal() else (str(row.place), 0)
