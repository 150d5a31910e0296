"""What a check is asked, and what it found: kinds, findings, counts of each source, and the page that shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hftune.arguments.option import option
from hftune.data.files import Chunk, FailedChunk, chunks
from hftune.publishing.disk import write_file
from hftune.secrets import redact
from hftune.tools.reporting.page import as_html, html_page, part
from hftune.tools.reporting.tables import Section
from hftune.visible import html

UNUSABLE, DUPLICATE, NEAR, LEAK = "unusable", "duplicate", "near_duplicate", "leak"
CUT, REFUSAL, BOILERPLATE = "cut_off", "refusal", "boilerplate"
CONTROL, ENCODING, SECRET = "control_tokens", "encoding", "secret"

KINDS: dict[str, str] = {
    UNUSABLE: "cannot be read, or trained by no stage",
    DUPLICATE: "equal to an earlier record",
    NEAR: "nearly equal to an earlier record",
    LEAK: "holds a record of the evaluation data",
    CUT: "an answer ends in the middle",
    REFUSAL: "an answer refuses",
    BOILERPLATE: "an assistant of another maker speaks",
    CONTROL: "control tokens of chat templates in the text",
    ENCODING: "decoded from the wrong encoding",
    SECRET: "a token or password",
}
"""Kind -> what it means."""

REPORT = "report.html"
_BITS = {kind: 1 << number for number, kind in enumerate(KINDS)}


@dataclass
class DataCheckArguments:
    """What is in data, and what should not be trained."""

    files: list[str] | None = option(
        None, "Files and folders of records, in any format of any stage; also given alone."
    )
    against: list[str] | None = option(
        None, "Files and folders of evaluation data, which must not stand in the others."
    )
    output_dir: str | None = option(
        None, "Folder for a page, the findings and, with --drop, the records that are left."
    )
    overwrite_output_dir: bool = option(False, "Replace an earlier result there.")
    drop: list[str] | None = option(
        None, "Kinds of findings whose records are left out of what is written.", choices=[*KINDS]
    )
    columns: str | None = option(None, "Columns with names of their own: prompt=question response=answer.")
    preprocessing_num_workers: int | None = option(None, "Processes; left out: one for each core.")


def mask_of(kinds: set[str]) -> int:
    """Kinds as a set of bits."""
    return sum(_BITS[kind] for kind in kinds)


def kinds_in(mask: int) -> list[str]:
    """The kinds that a set of bits holds."""
    return [kind for kind, bit in _BITS.items() if mask & bit]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about one record.

    Attributes:
        kind: A key of `KINDS`.
        file: Where the record is.
        line: Its line, as `Row` counts; 0 for a whole file.
        reason: A line of words, without secrets.
    """

    kind: str
    file: str
    line: int
    reason: str

    @property
    def origin(self) -> str:
        """`file:line`, as messages have it."""
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass
class Source:
    """Files that are counted together.

    Attributes:
        name: As it was given.
        files: In the order in which they are read.
        first: Number of the first of these files among those of all sources.
        records: How many were read, those included that cannot be used.
        kinds: What records are for.
        found: Findings by kind.
        failed: Those that cannot be read to their end.
        lengths: Characters of each record that can be used.
    """

    name: str
    files: list[Path]
    first: int = 0
    records: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    failed: set[str] = field(default_factory=set)
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint32))

    def characters(self) -> dict[str, int]:
        """All of them, and those of a record: at the median, at 95 %, and of the longest."""
        total = {"total": int(self.lengths.sum(dtype=np.uint64))}
        if not len(self.lengths):
            return total | {"median": 0, "p95": 0, "longest": 0}
        found = np.quantile(self.lengths, [0.5, 0.95, 1], method="inverted_cdf").tolist()
        return total | dict(zip(("median", "p95", "longest"), map(int, found), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the summary in the output folder."""
        counts = {name: dict(getattr(self, name).most_common()) for name in ("kinds", "found")}
        return {"records": self.records, **counts, "characters": self.characters()}

    def chunks(self) -> Iterator[tuple[int, Chunk]]:
        """The number of the file and a chunk of its records, for all of them."""
        for number, file in enumerate(self.files, start=self.first):
            for chunk in chunks([file]):
                if isinstance(chunk, FailedChunk):
                    self.failed.add(str(file))
                yield number, chunk


@dataclass
class Result:
    """All that was found.

    Attributes:
        sources: What was read, with its counts.
        examples: The first findings of each kind.
        left_out: Records that are left out, by the first kind that is the reason.
        kept: Records that are left.
        dropped: Kinds whose records are left out.
    """

    sources: list[Source]
    examples: dict[str, list[Finding]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    dropped: set[str] = field(default_factory=set)

    @property
    def records(self) -> int:
        """All records that were read."""
        return sum(source.records for source in self.sources)

    def summary(self) -> str:
        """What was found, in a line or two for each source."""
        lines = []
        for source in self.sources:
            told = "{median:,} characters at the median, {p95:,} at 95 %, {longest:,} at most"
            lengths = told.format_map(source.characters())
            lines.append(f"{source.name}: {source.records:,} records ({_listed(source.kinds)}); {lengths}")
            lines += [f"  found: {_listed(source.found)}"] if source.found else []
        return "\n".join([*lines, self._left_out()])

    def _left_out(self) -> str:
        if not self.left_out:
            return f"nothing is left out of {self.records:,} records"
        return f"{self.kept:,} of {self.records:,} records are left; left out: {_listed(self.left_out)}"

    def write_report(self, folder: Path) -> None:
        """Write the page into a folder."""
        title = f"Data check: {', '.join(Path(source.name).name for source in self.sources)}"
        tables = [part("table", one) for one in (self._sources(), self._findings(), *self._examples())]
        body = as_html(f"<p>{html(self._left_out())}</p>") + as_html("").join(tables)
        write_file(folder / REPORT, redact(html_page(title, body=body)))

    def _sources(self) -> Section:
        headers = ("source", "files", "records", "for", "characters", "median", "95 %", "longest")
        rows = []
        for source in self.sources:
            lengths = source.characters().values()
            rows.append((source.name, len(source.files), source.records, _listed(source.kinds), *lengths))
        return Section("Sources", headers, rows, "Lengths are in characters.")

    def _findings(self) -> Section:
        found = sum((source.found for source in self.sources), Counter[str]())
        rows = [
            (kind, meaning, found[kind], "left out" if kind in self.dropped else "kept", self.left_out[kind])
            for kind, meaning in KINDS.items()
            if found[kind]
        ]
        headers = ("kind", "what it means", "findings", "its records are", "left out first for it")
        return Section("Findings", headers, rows, "A record may have several findings.")

    def _examples(self) -> Iterator[Section]:
        for kind, meaning in KINDS.items():
            if shown := self.examples.get(kind):
                rows = [(finding.origin, finding.reason) for finding in shown]
                yield Section(f"{kind}: {meaning}", ("record", "reason"), rows, f"The first {len(rows)}.")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
