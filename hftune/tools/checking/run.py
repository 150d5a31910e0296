"""`hftune data check`: reads all records once, compares them by numbers, and writes what it found."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm.auto import tqdm

from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.inputs import inputs_of
from hftune.data.arrow_files import ArrowRecords
from hftune.data.columns import apply_columns, check_columns, parse_columns
from hftune.data.encoder import default_workers, map_in_order
from hftune.data.files import Chunk, Row, chunks, find_files, is_compressed
from hftune.data.formats import take_unread
from hftune.errors import ArgumentError, DataError, UserError, raise_together
from hftune.logging import notice
from hftune.publishing.folder import published_folder
from hftune.publishing.places import check_place
from hftune.secrets import command_without_secrets
from hftune.tools.checking.compare import NONE, LeakIndex, find_twins
from hftune.tools.checking.records import Record, to_record
from hftune.tools.checking.result import DUPLICATE, NEAR, DataCheckArguments, Finding, Result, Source, kinds_in, mask_of
from hftune.tools.checking.scan import ABOUT, Scanned, place_of, scan
from hftune.visible import as_json, say

FINDINGS, SUMMARY, KEPT = "findings.jsonl", "summary.json", "kept"
_EXAMPLES = 20


def check(args: DataCheckArguments, argv: list[str]) -> Result:
    """Check data, say what was found, and write it where a folder for it was named.

    Raises:
        UserError: What is wrong with the arguments, together; no data; or the disk.
    """
    raise_together(check_arguments(args))
    result = Result(_checked_sources(args.files or [], args.against or []), dropped={*(args.drop or [])})
    inputs = [file for source in result.sources for file in source.files]
    if args.output_dir is None:
        _check(args, result, inputs, None)
    else:
        with published_folder(args.output_dir, overwrite=args.overwrite_output_dir, inputs=inputs) as folder:
            _check(args, result, inputs, folder)
            manifest: manifests.Manifest = {"hftune": manifests.library_versions().get("hftune"), "stage": "data check"}
            manifest["command"] = command_without_secrets(["hftune", "data", *argv])
            manifests.finish_manifest(folder, manifest | {"status": manifests.COMPLETE})
    say(result.summary())
    if args.output_dir:
        left = f", the records that are left ({KEPT})" if args.drop else ""
        say(f"{args.output_dir}: a page (report.html), all findings ({FINDINGS}){left}")
    return result


def check_arguments(args: DataCheckArguments) -> Iterator[UserError]:
    """Everything that is wrong with the arguments."""
    if not args.files:
        yield ArgumentError("no data was named", place="--files", fix="hftune data check FILE_OR_FOLDER ...")
    if args.drop and not args.output_dir:
        cause = "what is left has no place"
        yield ArgumentError(cause, place="--drop", fix="name a folder for it: --output_dir OUT")
    if args.output_dir:
        yield from check_place(args.output_dir, inputs_of(args), overwrite=args.overwrite_output_dir)


def _check(args: DataCheckArguments, result: Result, inputs: list[Path], folder: Path | None) -> None:
    """Read, compare, decide, and write all but the manifest."""
    states = _states(inputs)
    with ExitStack() as stack:
        stream = stack.enter_context((folder / FINDINGS).open("x", encoding="utf-8")) if folder else None
        # On the disk that has room for results, without a name: it goes with the process.
        numbers = stack.enter_context(tempfile.TemporaryFile(dir=folder))
        about = _scan(args, result, stream, numbers)
        kept = _decide(result, about, stream)
        if folder is not None:
            _write(folder, result, about, kept)
    for file, then, now in zip(inputs, states, _states(inputs), strict=True):
        if then != now:
            fix = "Let nothing write to it, and start again."
            raise DataError("the file changed while it was read", place=str(file), fix=fix, kind="file changed")


def _states(files: list[Path]) -> list[tuple[int, ...]]:
    stats = [file.stat() for file in files]
    return [(stat.st_size, stat.st_mtime_ns, stat.st_ino) for stat in stats]


# --- what is read ---


def _given_sources(paths: list[str], flag: str) -> list[Source]:
    """A source for each path; a file that several of them hold belongs to the first."""
    seen: set[Path] = set()
    sources = []
    for path in paths:
        files = [file for file in find_files(path, flag, say=flag == "--files") if file.resolve() not in seen]
        seen |= {file.resolve() for file in files}
        if files:
            sources.append(Source(path, files))
    return sources


def _checked_sources(paths: list[str], against: list[str]) -> list[Source]:
    """The sources that are checked: evaluation data that lies among them is not.

    Raises:
        DataError: Nothing to read at a path, or nothing but evaluation data.
    """
    held = {file.resolve() for source in _given_sources(against, "--against") for file in source.files}
    sources, both, first = _given_sources(paths, "--files"), 0, 0
    for source in sources:
        left = [file for file in source.files if file.resolve() not in held]
        both += len(source.files) - len(left)
        source.files, source.first = left, first
        first += len(left)
    if both:
        notice(f"{both} file(s) are evaluation data (--against) and are not checked as training data")
    if not first:
        raise DataError("all files are evaluation data", place="--files, --against", fix="name the training data")
    return [source for source in sources if source.files]


def _leak_index(paths: list[str], columns: dict[str, str]) -> LeakIndex:
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
    for chunk in chunks([file for source in _given_sources(paths, "--against") for file in source.files]):
        for row in chunk.rows():
            try:
                if not isinstance(row, Row):
                    raise row
                yield row.origin, to_record(apply_columns(row, columns))
            except DataError as error:
                faults.append(error)
        take_unread()


def _scan(args: DataCheckArguments, result: Result, stream: TextIO | None, numbers: BinaryIO) -> np.ndarray:
    """Read all records; what is known of each afterwards: (records,) of `ABOUT`, in the order of reading.

    Args:
        numbers: An empty file, in which it lies.
    """
    columns = parse_columns(args.columns)
    work = partial(_scanned, columns, _leak_index(args.against, columns) if args.against else None)
    # Numbers in place of sources travel to a worker: their counts grow.
    items = ((place, number, chunk) for place, source in enumerate(result.sources) for number, chunk in source.chunks())
    met: set[str] = set()
    workers = args.preprocessing_num_workers or default_workers()
    with tqdm(unit=" records", desc="checking", delay=2) as bar:
        for place, scanned in map_in_order(work, items, workers):
            source = result.sources[place]
            source.records += len(scanned.about)
            source.kinds.update(scanned.kinds)
            numbers.write(scanned.about.tobytes())
            for finding in scanned.found:
                _add(finding, source, result, stream)
            met |= scanned.columns
            bar.update(len(scanned.about))
    check_columns(columns, met)
    for source in result.sources:
        for file in sorted(source.failed):
            notice(f"{file} cannot be read to its end; what is left of it is not written")
    numbers.flush()
    count = numbers.tell() // ABOUT.itemsize
    # An empty file cannot be mapped.
    about = np.memmap(numbers, ABOUT, "r+", shape=(count,)) if count else np.zeros(0, ABOUT)
    for source in result.sources:
        own = about[_part(about, source.first, len(source.files))]
        source.lengths = own["length"][own["exact"] != 0]
    return about


def _part(about: np.ndarray, first: int, files: int) -> slice:
    """Where the records of some files are: in the order in which they were read."""
    return slice(*np.searchsorted(about["source"], [first, first + files]))


def _scanned(columns: dict[str, str], leaks: LeakIndex | None, item: tuple[int, int, Chunk]) -> tuple[int, Scanned]:
    place, number, chunk = item
    scanned = scan(chunk, columns, leaks)
    scanned.about["source"] = number
    return place, scanned


def _add(finding: Finding, source: Source, result: Result, stream: TextIO | None) -> None:
    """Count a finding, keep the first of each kind for the page, and write all of them."""
    source.found[finding.kind] += 1
    shown = result.examples.setdefault(finding.kind, [])
    if len(shown) < _EXAMPLES:
        shown.append(finding)
    if stream is not None:
        line = {"file": finding.file, "line": finding.line, "kind": finding.kind, "reason": finding.reason}
        stream.write(as_json(line) + "\n")


# --- comparing ---


def _decide(result: Result, about: np.ndarray, stream: TextIO | None) -> np.ndarray:
    """Whether each record is kept; tells of equal records, and of nearly equal ones."""
    twins = find_twins(about["exact"], about["shingles"], about["signature"])
    files = [str(file) for source in result.sources for file in source.files]
    owner = [source for source in result.sources for _ in source.files]
    sound = (about["kinds"] & mask_of(result.dropped)) == 0
    kept = sound.copy()
    for record in np.flatnonzero((twins.equal != NONE) | (twins.near != NONE)).tolist():
        if twins.equal[record] != NONE:
            kind, twin, words = DUPLICATE, int(twins.equal[record]), "equals"
        else:
            kind, twin = NEAR, int(twins.near[record])
            words = f"nearly equals (similarity {twins.similarity[record]:.2f})"
        one, other = about[record], about[twin]
        one["kinds"] |= mask_of({kind})
        reason = f"{words} {files[other['source']]}:{other['line']}"
        _add(Finding(kind, files[one["source"]], int(one["line"]), reason), owner[one["source"]], result, stream)
        if kind in result.dropped:
            # One of them stays: where the earlier one is left out for another reason, the later one takes its place.
            # What an earlier one equals is as near to others as that one is.
            kept[record] &= not (sound if kind == DUPLICATE else kept)[twin]
    result.kept = int(kept.sum())
    masks, counts = np.unique(about["kinds"][~kept] & mask_of(result.dropped), return_counts=True)
    for mask, count in zip(masks.tolist(), counts.tolist(), strict=True):
        result.left_out[kinds_in(mask)[0]] += count
    return kept


# --- writing ---


def _write(folder: Path, result: Result, about: np.ndarray, kept: np.ndarray) -> None:
    written: dict[str, str] = {}
    for source in result.sources if result.dropped else ():
        for number, file in enumerate(source.files, start=source.first):
            own = kept[_part(about, number, 1)]
            if str(file) not in source.failed and own.any():
                target = _target(folder / KEPT, source, file, set(written))
                target.parent.mkdir(parents=True, exist_ok=True)
                _write_kept(file, target, iter(own.tolist()))
                written[str(target.relative_to(folder))] = str(file)
    result.write_report(folder)
    described = {
        "records": result.records,
        "kept": result.kept,
        "left_out": dict(result.left_out.most_common()),
        "left_out_for": sorted(result.dropped),
        "files": written,
        "sources": {source.name: source.to_dict() for source in result.sources},
    }
    (folder / SUMMARY).write_text(as_json(described, indent=1) + "\n", encoding="utf-8")


def _write_kept(file: Path, target: Path, kept: Iterator[bool]) -> None:
    """Write the records of a file that are kept: rows of tables as a table, all others as lines of JSON."""
    with ExitStack() as stack:
        write = None
        for chunk in chunks([file]):
            if isinstance(chunk, ArrowRecords):
                table = chunk.table()
                if write is None:
                    make = pq.ParquetWriter if target.suffix.lower() == ".parquet" else pa.ipc.new_stream
                    write = stack.enter_context(make(str(target), table.schema)).write_table
                write(table.filter(pa.array([next(kept, False) for _ in range(len(table))], pa.bool_())))
                continue
            # Halves of characters stay what they are in JSON: escapes.
            with target.open("a", encoding="utf-8", errors="backslashreplace") as stream:
                for row in chunk.rows():
                    # An error has a record's place, too, unless it is about the whole file.
                    if place_of(row)[1] > 0 and next(kept, False) and isinstance(row, Row):
                        stream.write(json.dumps(row.value, ensure_ascii=False) + "\n")
    take_unread()


def _target(folder: Path, source: Source, file: Path, taken: set[str]) -> Path:
    """A place below `kept` with the file's name, as in its folder; another one where two sources have the same."""
    root = Path(source.name).expanduser()
    name = file.relative_to(root) if root.is_dir() and file.is_relative_to(root) else Path(file.name)
    if file.suffix.lower() not in (".parquet", ".arrow"):
        # `d.txt`, `d.json` and `d.jsonl.gz` all become lines of JSON.
        name = (name.with_suffix("") if is_compressed(file) else name).with_suffix(".jsonl")
    found, number = name, 1
    while str(Path(KEPT) / found) in taken:
        number += 1
        found = name.with_name(f"{number}-{name.name}")
    return folder / found
