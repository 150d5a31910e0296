"""One chunk of records: what is wrong with each of them by itself, and the numbers by which they are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hftune.data.readers.base import Chunk, Row, RowOrError
from hftune.data.readers.columns import apply_columns, columns_found
from hftune.data.records.unread import take_unread
from hftune.errors import DataError, shown
from hftune.tools.checking import findings, personal, texts
from hftune.tools.checking.findings import Finding, mask_of
from hftune.tools.checking.languages import language_of
from hftune.tools.checking.leaks import LeakIndex
from hftune.tools.checking.records import Record, to_record
from hftune.tools.checking.shingles import Shingles, shingles_of, signatures_of
from hftune.tools.checking.store import ABOUT
from hftune.tools.checking.tally import Tally


@dataclass
class Scanned:
    """What is known of the records of a chunk.

    Attributes:
        about: (n,) of `ABOUT`; the file's number is for the parent to fill in.
        signatures: (n, ...) as `signatures_of` gives them.
        found: What is wrong.
        tally: Counts.
        columns: Of those that were to be renamed, which were met.
    """

    about: np.ndarray
    signatures: np.ndarray
    found: list[Finding]
    tally: Tally
    columns: set[str]


@dataclass
class _Place:
    """A record, or None where there is none that can be used; and what was found, as bits of kinds."""

    file: str
    line: int
    record: Record | None
    kinds: int = 0


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
        result = Scanned(np.zeros(0, ABOUT), np.zeros((0, 0), np.uint32), [], Tally(), set())
        places = [self._read(row, result) for row in chunk.rows()]
        take_unread()  # what is not read of records is told by `hftune preview`
        # Of a file that cannot be read at all there is no record.
        places = [place for place in places if place.line]
        result.tally.records = len(places)
        shingles = self._compare(places, result)
        if compared_only:
            result.found.clear()
        else:
            self._judge(places, result)
        for leak in self.leaks.leaks(shingles) if self.leaks else ():
            self._note(places[leak.record], findings.LEAK, leak.reason, result)
        result.about["kinds"] = [place.kinds for place in places]
        return result

    def _note(self, place: _Place, kind: str, reason: str, result: Scanned) -> None:
        place.kinds |= mask_of({kind})
        result.found.append(Finding(kind, place.file, place.line, reason))

    def _read(self, row: RowOrError, result: Scanned) -> _Place:
        try:
            if isinstance(row, DataError):
                raise row
            result.columns |= columns_found(row, self.columns)
            return _Place(row.file, row.line, to_record(apply_columns(row, self.columns)))
        except DataError as error:
            place = _Place(*place_of(error, row), None)
            # Causes quote the record; of a very long quotation only the beginning is looked through.
            cause = shown(personal.hidden(error.cause[:1000]), 120)
            self._note(place, findings.UNUSABLE, f"{error.kind}: {cause}", result)
            return place

    def _compare(self, places: list[_Place], result: Scanned) -> Shingles:
        """Fill in the numbers of all records; those of one that cannot be used are like no other's."""
        compared = [place.record.compared if place.record else "" for place in places]
        shingles = shingles_of(compared)
        result.signatures = signatures_of(shingles)
        result.about = np.zeros(len(places), ABOUT)
        result.about["shingles"] = np.diff(shingles.bounds)
        result.about["line"] = [place.line for place in places]
        for number, place in enumerate(places):
            if record := place.record:
                about = result.about[number]
                about["exact"], about["judged"], about["verdict"] = record.exact, record.judged, record.verdict
                words = shingles.words[shingles.word_bounds[number] : shingles.word_bounds[number + 1]]
                result.tally.add(record, language_of(compared[number], words), len(compared[number]))
        return shingles

    def _judge(self, places: list[_Place], result: Scanned) -> None:
        """Add what is wrong with each record by itself."""
        for place in places:
            for kind, reason in faults(place.record) if place.record else ():
                if reason:
                    self._note(place, kind, reason, result)
        said = [place.record.whole for place in places if place.record]
        if self.tokenizer is not None and said:
            # Without a tokenizer transformers, which takes seconds, is not imported for it.
            from hftune.data.templates.respelled_tokenizer import encode_batch

            for encoding in encode_batch(self.tokenizer, said, add_special_tokens=False):
                result.tally.tokens.add(len(encoding.ids))


def faults(record: Record) -> Iterator[tuple[str, str]]:
    """(kind, reason) of what may be wrong with a record; the reason is empty where it is not."""
    whole = record.whole
    said = "\n".join(text for role, text in record.spoken if role == "assistant")
    # The worse answer of a pair may be as bad as it likes: it is there to be avoided.
    for answer in record.answers[:1]:
        yield findings.CUT, texts.cut_off(answer)
        yield findings.REFUSAL, texts.refusal(answer)
    yield findings.BOILERPLATE, texts.boilerplate(said)
    yield findings.CONTROL, texts.control_token(whole)
    yield findings.ENCODING, texts.damage(whole)
    yield findings.SECRET, _listed(whole, personal.secrets_in(whole))
    yield findings.PERSONAL, _listed(whole, personal.personal_in(whole))


def _listed(text: str, places: Iterator[personal.Place], limit: int = 3) -> str:
    """What was found, masked."""
    found = list(dict.fromkeys(personal.shown(text, place) for place in places))
    more = f", and {len(found) - limit} more" if len(found) > limit else ""
    return ", ".join(found[:limit]) + more


def place_of(error: DataError, row: RowOrError) -> tuple[str, int]:
    """File and line of an error; line 0 where it is about a whole file."""
    if isinstance(row, Row):
        return row.file, row.line
    file, colon, line = str(error.place).rpartition(":")
    return (file, int(line)) if colon and line.isdecimal() else (str(error.place), 0)
