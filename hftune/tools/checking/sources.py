"""What is read by a check: the data, evaluation data, and what the ancestors of a model were trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hftune.data.formats import take_unread
from hftune.data.readers.base import Chunk, FailedChunk, Row
from hftune.data.readers.columns import apply_columns
from hftune.data.readers.files import chunks, find_files
from hftune.errors import DataError, UserError, shown
from hftune.logging import notice
from hftune.tools.checking.leaks import LeakIndex
from hftune.tools.checking.records import Record, to_record
from hftune.tools.checking.tally import Tally
from hftune.tools.reporting.lineage import trace, trained_on


@dataclass
class Source:
    """Files that are counted together.

    Attributes:
        name: As it was given; of an ancestor its folder.
        files: In the order in which they are read.
        is_ancestor: They are there to be compared with.
        first: Number of the first of these files among those of all sources.
        tally: What is in them.
        failed: Those that cannot be read to their end.
    """

    name: str
    files: list[Path]
    is_ancestor: bool = False
    first: int = 0
    tally: Tally = field(default_factory=Tally)
    failed: set[str] = field(default_factory=set)

    def chunks(self) -> Iterator[tuple[int, Chunk]]:
        """The number of the file and a chunk of its records, for all of them."""
        for number, file in enumerate(self.files, start=self.first):
            for chunk in chunks([file]):
                if isinstance(chunk, FailedChunk):
                    self.failed.add(str(file))
                yield number, chunk


def given_sources(paths: list[str], flag: str) -> list[Source]:
    """A source for each path; a file that several of them hold belongs to the first.

    Raises:
        DataError: Nothing to read at a path.
    """
    seen: set[Path] = set()
    sources = []
    for path in paths:
        files = [file for file in find_files(path, flag, say=flag == "--files") if file.resolve() not in seen]
        seen |= {file.resolve() for file in files}
        if files:
            sources.append(Source(path, files))
    return sources


def checked_sources(paths: list[str], against: list[str]) -> list[Source]:
    """The sources that are checked: evaluation data that lies among them is not.

    Raises:
        DataError: Nothing to read at a path, or nothing but evaluation data.
    """
    held = {file.resolve() for source in given_sources(against, "--against") for file in source.files}
    sources, both = given_sources(paths, "--files"), 0
    for source in sources:
        left = [file for file in source.files if file.resolve() not in held]
        both += len(source.files) - len(left)
        source.files = left
    if both:
        notice(f"{both} file(s) are evaluation data (--against) and are not checked as training data")
    if not any(source.files for source in sources):
        raise DataError("all files are evaluation data", place="--files, --against", fix="name the training data")
    return [source for source in sources if source.files]


def ancestor_sources(folder: str, others: list[Source]) -> list[Source]:
    """What the stages that made a model were trained on, oldest first, as far as it is still there.

    Raises:
        ManifestError: hftune did not make the folder.
    """
    seen = {file.resolve() for source in others for file in source.files}
    sources = []
    for origin in trace(folder).walk():
        named = [
            file for split in trained_on(origin.manifest) if split["split"] == "train" for file in split["files"] or []
        ]
        files = []
        for name in map(str, named):
            try:
                # A manifest from anywhere may name a folder, such as /: runs record files.
                found = find_files(name, "--ancestors", say=False) if Path(name).is_file() else []
            except DataError:
                found = []
            if not found:
                notice(f"{origin.name} was trained on {shown(name, 300)}, which is not compared: no data file is there")
            files += [file for file in found if file.resolve() not in seen]
        seen |= {file.resolve() for file in files}
        if files:
            sources.append(Source(origin.name, files, is_ancestor=True))
    return sources


def leak_index(paths: list[str], columns: dict[str, str]) -> LeakIndex:
    """The evaluation data as what records are looked up in.

    Raises:
        DataError: Nothing to read, or no record that can be read.
    """
    faults = list[UserError]()
    index = LeakIndex(_evaluation(paths, columns, faults))
    if not index.records:
        raise faults[0]
    if faults:
        notice(f"{len(faults)} record(s) of the evaluation data cannot be read (first: {faults[0].place})")
    return index


def _evaluation(paths: list[str], columns: dict[str, str], faults: list[UserError]) -> Iterator[tuple[str, Record]]:
    for chunk in chunks([file for source in given_sources(paths, "--against") for file in source.files]):
        for row in chunk.rows():
            try:
                if not isinstance(row, Row):
                    raise row
                yield row.origin, to_record(apply_columns(row, columns))
            except DataError as error:
                faults.append(error)
        take_unread()
