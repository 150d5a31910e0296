"""`hftune data check`: reads all records once, compares them by numbers, and writes what it found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.inputs import inputs_of
from hftune.data.columns import apply_columns, check_columns, columns_found, parse_columns
from hftune.data.encoder import default_workers, map_in_order
from hftune.data.files import Chunk, FailedChunk, Row, RowOrError, chunks, find_files, is_compressed
from hftune.data.formats import take_unread
from hftune.data.sources import changed, states_of
from hftune.errors import ArgumentError, DataError, UserError, raise_together, shown
from hftune.logging import notice
from hftune.publishing.folder import published_folder
from hftune.publishing.places import check_place
from hftune.secrets import MASK, command_without_secrets, redact
from hftune.tools.checking import KINDS, DataCheckArguments
from hftune.tools.checking.compare import BANDS, ROWS, LeakIndex, find_twins, shingles_of, signature_of
from hftune.tools.checking.records import FAULTS, FOR, Record, to_record, tokens_in
from hftune.visible import as_json, say

FINDINGS, SUMMARY, KEPT = "findings.jsonl", "summary.json", "kept"
ABOUT = np.dtype(
    [
        ("file", "<u4"),  # its number
        ("line", "<u8"),
        ("stage", "<u1"),  # number of the kind of record in `FOR`; of one that cannot be used all below are 0
        ("exact", "<u8"),
        ("shingles", "<u4"),
        ("signature", "<u4", (BANDS * ROWS,)),
        ("found", "<u4"),  # kinds of findings, a bit each
    ]
)
"""What is kept of each record until all were read."""
_BITS = {kind: 1 << number for number, kind in enumerate(KINDS)}

Sources = Sequence[tuple[str, Path]]
"""Each file with the path by which it was given; files of one path are counted together."""


@dataclass(frozen=True)
class Finding:
    """Something about a record: `file` and `line` say where it is (line 0: the whole file), `reason` in words why."""

    kind: str
    file: str
    line: int
    reason: str


def check(args: DataCheckArguments, argv: list[str]) -> dict[str, Any]:
    """Check data, say what was found, and write it where a folder for it was named.

    Returns:
        What `summary.json` holds.

    Raises:
        UserError: What is wrong with the arguments, together; no data; or the disk.
    """
    raise_together(check_arguments(args))
    sources = _given(args.files or [], "--files", without=_given(args.against or [], "--against"))
    if not sources:
        raise DataError("all files are evaluation data", place="--files, --against", fix="name the training data")
    if args.output_dir is None:
        return _check(args, sources, None)
    inputs = [file for _, file in sources]
    with published_folder(args.output_dir, overwrite=args.overwrite_output_dir, inputs=inputs) as folder:
        summary = _check(args, sources, folder)
        manifest: manifests.Manifest = {"hftune": manifests.library_versions().get("hftune"), "stage": "data check"}
        manifest["command"] = command_without_secrets(["hftune", "data", *argv])
        manifests.finish_manifest(folder, manifest | {"status": manifests.COMPLETE})
    left = f", the records that are left ({KEPT})" if args.drop else ""
    say(f"{args.output_dir}: all findings ({FINDINGS}), counts ({SUMMARY}){left}")
    return summary


def check_arguments(args: DataCheckArguments) -> Iterator[UserError]:
    """Everything that is wrong with the arguments."""
    if not args.files:
        yield ArgumentError("no data was named", place="--files", fix="hftune data check FILE_OR_FOLDER ...")
    if args.drop and not args.output_dir:
        cause = "what is left has no place"
        yield ArgumentError(cause, place="--drop", fix="name a folder for it: --output_dir OUT")
    if args.output_dir:
        yield from check_place(args.output_dir, inputs_of(args), overwrite=args.overwrite_output_dir)


def _check(args: DataCheckArguments, sources: Sources, folder: Path | None) -> dict[str, Any]:
    """Read, compare, decide, say, and write all but the manifest."""
    files, dropped = [file for _, file in sources], {*(args.drop or [])}
    states = states_of(files)
    about, findings, failed = _scan(args, sources)
    kept, left_out = _decide(about, findings, files, dropped)
    if states_of(files) != states:
        raise changed(files)
    summary: dict[str, Any] = {"records": len(about), "kept": int(kept.sum()), "left_out": left_out}
    summary |= {"left_out_for": sorted(dropped), "files": {}, "sources": {}}
    for name in dict.fromkeys(name for name, _ in sources):
        own = [number for number, (other, _) in enumerate(sources) if other == name]
        summary["sources"][name] = _counts(about[np.isin(about["file"], own)])
    if folder is not None:
        for number, (name, file) in enumerate(sources) if dropped else ():
            part = kept[about["file"] == number]
            if str(file) not in failed and part.any():
                target = _target(folder / KEPT, name, file)
                _write_kept(file, target, iter(part.tolist()))
                summary["files"][str(target.relative_to(folder))] = str(file)
        (folder / FINDINGS).write_text("".join(as_json(vars(one)) + "\n" for one in findings), encoding="utf-8")
        (folder / SUMMARY).write_text(as_json(summary, indent=1) + "\n", encoding="utf-8")
    say("\n".join(_told(summary, findings)))
    return summary


def _counts(about: np.ndarray) -> dict[str, Any]:
    """How many records there are, what they are for, and what was found."""
    kinds = Counter(FOR[number - 1] for number in about["stage"].tolist() if number)
    found = Counter({kind: int((about["found"] & bit > 0).sum()) for kind, bit in _BITS.items()})
    counts = {"kinds": dict(kinds.most_common()), "found": {kind: n for kind, n in found.most_common() if n}}
    return {"records": len(about), **counts}


def _told(summary: Mapping[str, Any], findings: list[Finding]) -> Iterator[str]:
    """What was found, in a line or two for each source, and the first finding of each kind."""
    for name, source in summary["sources"].items():
        yield f"{name}: {source['records']:,} records ({_listed(source['kinds'])})"
        if source["found"]:
            yield f"  found: {_listed(source['found'])}"
    for kind, meaning in KINDS.items():
        if first := next((one for one in findings if one.kind == kind), None):
            yield f"{kind} ({meaning}), the first: {first.file}:{first.line} {first.reason}"
    of = f"{summary['records']:,} records"
    if summary["left_out"]:
        yield f"{summary['kept']:,} of {of} are left; left out: {_listed(summary['left_out'])}"
    else:
        yield f"nothing is left out of {of}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


# --- what is read ---


def _given(paths: list[str], flag: str, without: Sources = ()) -> Sources:
    """The files of each path; one that several of them hold belongs to the first."""
    held = {file.resolve() for _, file in without}
    seen, found = set[Path](), []
    for path in paths:
        for file in find_files(path, flag, say=flag == "--files"):
            if file.resolve() not in seen | held:
                found.append((path, file))
            seen.add(file.resolve())
    if both := len(seen & held):
        notice(f"{both} file(s) are evaluation data (--against) and are not checked as training data")
    return found


def _leak_index(paths: list[str], columns: dict[str, str]) -> LeakIndex:
    """The evaluation data as what records are looked up in.

    Raises:
        DataError: Nothing to read, or no record that can be read.
    """
    faults = list[UserError]()
    files = [file for _, file in _given(paths, "--against")]

    def evaluation() -> Iterator[tuple[str, Record]]:
        for row in (row for chunk in chunks(files) for row in chunk.rows()):
            try:
                if isinstance(row, DataError):
                    raise row
                yield row.origin, to_record(apply_columns(row, columns))
            except DataError as error:
                faults.append(error)

    index = LeakIndex(evaluation())
    take_unread()
    if not index.records:
        raise faults[0]
    if faults:
        notice(f"{len(faults)} record(s) of the evaluation data cannot be read (first: {faults[0].place})")
    return index


def _scan(args: DataCheckArguments, sources: Sources) -> tuple[np.ndarray, list[Finding], set[str]]:
    """Read all records: (records,) of `ABOUT` in their order, findings, and files that cannot be read to their end."""
    columns, failed = parse_columns(args.columns), set[str]()
    work = partial(_scanned, columns, _leak_index(args.against, columns) if args.against else None)

    def items() -> Iterator[tuple[int, Chunk]]:
        for number, (_, file) in enumerate(sources):
            for chunk in chunks([file]):
                if isinstance(chunk, FailedChunk):
                    failed.add(str(file))
                yield number, chunk

    parts, findings, met = [np.zeros(0, ABOUT)], list[Finding](), set[str]()
    with tqdm(unit=" records", desc="checking", delay=2) as bar:
        for about, found, some in map_in_order(work, items(), args.preprocessing_num_workers or default_workers()):
            parts.append(about)
            findings += found
            met |= some
            bar.update(len(about))
    check_columns(columns, met)
    for name in sorted(failed):
        notice(f"{name} cannot be read to its end; what is left of it is not written")
    return np.concatenate(parts), findings, failed


def _scanned(
    columns: dict[str, str], leaks: LeakIndex | None, item: tuple[int, Chunk]
) -> tuple[np.ndarray, list[Finding], set[str]]:
    """Of the records of a chunk, in any process: `ABOUT` each, what is wrong with each by itself, `columns_found`."""
    rows = [(row, *place_of(row)) for row in item[1].rows()]
    take_unread()  # what is not read of records is told by `hftune preview`
    found, met, several = list[Finding](), set[str](), np.zeros(len(rows), ABOUT)
    for about, (row, file, line) in zip(several, rows, strict=True):
        try:
            if isinstance(row, DataError):
                raise row
            met |= columns_found(row, columns)
            told = [*_faults(to_record(apply_columns(row, columns)), about, leaks)]
        except DataError as error:
            # Causes quote the record; of a very long quotation only the beginning is looked through.
            cause = redact(error.cause[:1000])
            for token in tokens_in(cause):
                cause = cause.replace(token, MASK)
            told = [("unusable", f"{error.kind}: {shown(cause, 120)}")]
        about["file"], about["line"], about["found"] = item[0], line, sum(_BITS[kind] for kind, _ in told)
        found += [Finding(kind, file, line, reason) for kind, reason in told]
    # Of a file that cannot be read at all there is no record.
    return several[several["line"] > 0], found, met


def _faults(record: Record, about: np.void, leaks: LeakIndex | None) -> Iterator[tuple[str, str]]:
    """(kind, reason) of what is wrong with a record; its numbers are filled in."""
    shingles = shingles_of(record.compared)
    about["stage"] = FOR.index(record.kind) + 1
    about["exact"], about["shingles"], about["signature"] = record.exact, len(shingles), signature_of(shingles)
    if leaks and (reason := leaks.leak(shingles)):
        yield "leak", reason
    whole = "\n".join(text for _, text in record.spoken)
    yield from ((kind, reason) for kind, look in FAULTS.items() if (reason := look(whole)))


def place_of(row: RowOrError) -> tuple[str, int]:
    """File and line of a record, or of its error; line 0 where that is about a whole file."""
    if isinstance(row, Row):
        return row.file, row.line
    file, colon, line = str(row.place).rpartition(":")
    return (file, int(line)) if colon and line.isdecimal() else (str(row.place), 0)


# --- comparing ---


def _decide(
    about: np.ndarray, findings: list[Finding], files: list[Path], dropped: set[str]
) -> tuple[np.ndarray, dict[str, int]]:
    """Whether each record is kept, and for which kinds others are left out; adds findings of records that are alike."""
    twins, similarity = find_twins(about["exact"], about["shingles"], about["signature"])
    for_these = sum(_BITS[kind] for kind in dropped)
    sound = (about["found"] & for_these) == 0
    kept = sound.copy()
    for record in np.flatnonzero(twins >= 0).tolist():
        one, twin = about[record], int(twins[record])
        kind, words = "near_duplicate", f"nearly equals (similarity {similarity[record]:.2f})"
        if one["exact"] == about[twin]["exact"]:
            kind, words = "duplicate", "equals"
        one["found"] |= _BITS[kind]
        reason = f"{words} {files[about[twin]['file']]}:{about[twin]['line']}"
        findings.append(Finding(kind, str(files[one["file"]]), int(one["line"]), reason))
        if kind in dropped:
            # One of them stays: where the earlier one is left out for another reason, the later one takes its place.
            # What an earlier one equals is as near to others as that one is.
            kept[record] &= not (sound if kind == "duplicate" else kept)[twin]
    left_out = Counter[str]()
    for kinds in (about["found"][~kept] & for_these).tolist():
        left_out[next(kind for kind, bit in _BITS.items() if kinds & bit)] += 1
    return kept, {kind: left_out[kind] for kind in KINDS if left_out[kind]}


# --- writing ---


def _write_kept(file: Path, target: Path, kept: Iterator[bool]) -> None:
    """Write the records of a file that are kept as lines of JSON."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Halves of characters stay what they are in JSON: escapes.
    with target.open("a", encoding="utf-8", errors="backslashreplace") as stream:
        for row in (row for chunk in chunks([file]) for row in chunk.rows()):
            # An error has a record's place, too, unless it is about the whole file.
            if place_of(row)[1] > 0 and next(kept, False) and isinstance(row, Row):
                # `default`: Parquet has dates and decimals, for which JSON has no type.
                stream.write(json.dumps(row.value, ensure_ascii=False, default=str) + "\n")
    take_unread()


def _target(folder: Path, given: str, file: Path) -> Path:
    """A place below `kept` with the file's name, as in its folder; another one where two have the same."""
    root = Path(given).expanduser()
    name = file.relative_to(root) if root.is_dir() and file.is_relative_to(root) else Path(file.name)
    # `d.txt`, `d.parquet` and `d.jsonl.gz` all become lines of JSON.
    name = (name.with_suffix("") if is_compressed(file) else name).with_suffix(".jsonl")
    found, number = name, 1
    while (folder / found).exists():
        number += 1
        found = name.with_name(f"{number}-{name.name}")
    return folder / found
