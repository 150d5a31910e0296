"""`hftune data check`: reads all records once, compares them by numbers, and writes what it found."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
from tqdm.auto import tqdm

from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.inputs import inputs_of
from hftune.data.encoder import default_workers, map_in_order
from hftune.data.readers.base import Chunk
from hftune.data.readers.columns import check_columns, parse_columns
from hftune.errors import ArgumentError, UserError, raise_together
from hftune.logging import notice
from hftune.publishing.folder import published_folder
from hftune.publishing.places import check_place
from hftune.secrets import command_without_secrets
from hftune.tools.checking.arguments import DataCheckArguments
from hftune.tools.checking.filtered import changed, write_kept
from hftune.tools.checking.near import NONE, Twins, find_twins
from hftune.tools.checking.page import summary, write_report
from hftune.tools.checking.result import DUPLICATE, LOSS, NEAR, TRAINED, Finding, Result, kinds_in, mask_of
from hftune.tools.checking.scan import ABOUT, Scanned, Scanner
from hftune.tools.checking.sources import Source, ancestor_sources, checked_sources, leak_index
from hftune.visible import as_json, say

FINDINGS, LOSSES, SUMMARY, KEPT = "findings.jsonl", "losses.jsonl", "summary.json", "kept"
_EXAMPLES = 20


class _Findings:
    """Counts findings, keeps the first of each kind, and writes all of them."""

    def __init__(self, result: Result, stream: TextIO | None) -> None:
        self._result, self._stream = result, stream

    def add(self, finding: Finding, source: Source) -> None:
        """Take a finding about a record of a source."""
        source.tally.found[finding.kind] += 1
        shown = self._result.examples.setdefault(finding.kind, [])
        if len(shown) < _EXAMPLES:
            shown.append(finding)
        if self._stream is not None:
            line = {"file": finding.file, "line": finding.line, "kind": finding.kind, "reason": finding.reason}
            self._stream.write(as_json(line) + "\n")


def check(args: DataCheckArguments, argv: list[str]) -> Result:
    """Check data, say what was found, and write it where a folder for it was named.

    Raises:
        UserError: What is wrong with the arguments, together; no data; or the disk.
    """
    raise_together(check_arguments(args))
    sources = checked_sources(args.files or [], args.against or [])
    before = ancestor_sources(args.ancestors, sources) if args.ancestors else []
    # Ancestors first: a record's twin is always an earlier one.
    result = Result([*before, *sources], dropped={*(args.drop or [])})
    inputs = [file for source in result.sources for file in source.files]
    if args.output_dir is None:
        _check(args, result, inputs, None)
    else:
        with published_folder(args.output_dir, overwrite=args.overwrite_output_dir, inputs=inputs) as folder:
            _check(args, result, inputs, folder)
            manifest: manifests.Manifest = {"hftune": manifests.library_versions().get("hftune"), "stage": "data check"}
            manifest["command"] = command_without_secrets(["hftune", "data", *argv])
            manifests.finish_manifest(folder, manifest | {"status": manifests.COMPLETE})
    say(summary(result))
    if args.output_dir:
        left = f", the records that are left ({KEPT})" if args.drop else ""
        say(f"{args.output_dir}: a page (report.html), all findings ({FINDINGS}){left}")
    return result


def _check(args: DataCheckArguments, result: Result, inputs: list[Path], folder: Path | None) -> None:
    """Read, compare, decide, and write all but the manifest."""
    states = _states(inputs)
    with ExitStack() as stack:
        stream = stack.enter_context((folder / FINDINGS).open("x", encoding="utf-8")) if folder else None
        found = _Findings(result, stream)
        # On the disk that has room for results, without a name: it goes with the process.
        numbers = stack.enter_context(tempfile.TemporaryFile(dir=folder))
        about = _scan(args, result, found, numbers)
        if args.model is not None:
            _learn_losses(args, result, about, found, folder)
        kept = _decide(result, about, found)
        for file, then, now in zip(inputs, states, _states(inputs), strict=True):
            if then != now:
                raise changed(file)
        if folder is not None:
            _write(folder, result, about, kept)


def check_arguments(args: DataCheckArguments) -> Iterator[UserError]:
    """Everything that is wrong with the arguments."""
    if not args.files:
        yield ArgumentError("no data was named", place="--files", fix="hftune data check FILE_OR_FOLDER ...")
    if args.drop and not args.output_dir:
        cause = "what is left has no place"
        yield ArgumentError(cause, place="--drop", fix="name a folder for it: --output_dir OUT")
    if args.model is not None:
        from hftune.tools.talking.loading import check_talker

        fix = "give the language model"
        yield from check_talker(args.model, "--model", fix, trust_remote_code=args.trust_remote_code)
    if args.output_dir:
        yield from check_place(args.output_dir, inputs_of(args), overwrite=args.overwrite_output_dir)


def _states(files: list[Path]) -> list[tuple[int, ...]]:
    stats = [file.stat() for file in files]
    return [(stat.st_size, stat.st_mtime_ns, stat.st_ino) for stat in stats]


# --- reading ---


def _scan(args: DataCheckArguments, result: Result, found: _Findings, numbers: BinaryIO) -> np.ndarray:
    """Read all records; what is known of each afterwards: (records,) of `ABOUT`, in the order of reading.

    Args:
        numbers: An empty file, in which it lies.
    """
    columns = parse_columns(args.columns)
    leaks = leak_index(args.against, columns) if args.against else None
    scanner = Scanner(columns, leaks, _tokenizer(args))
    first = 0
    for source in result.sources:
        source.first, first = first, first + len(source.files)
    # Numbers in place of sources travel to a worker: their counts grow.
    items = (
        (place, number, source.is_ancestor, chunk)
        for place, source in enumerate(result.sources)
        for number, chunk in source.chunks()
    )
    met: set[str] = set()
    workers = args.preprocessing_num_workers or default_workers()
    with tqdm(unit=" records", desc="checking", delay=2) as bar:
        for number, scanned in map_in_order(partial(_scanned, scanner), items, workers):
            source = result.sources[number]
            source.tally.merge(scanned.tally)
            numbers.write(scanned.about.tobytes())
            for finding in scanned.found:
                found.add(finding, source)
            met |= scanned.columns
            bar.update(len(scanned.about))
    check_columns(columns, met)
    for source in result.sources:
        for file in sorted(source.failed):
            notice(f"{file} cannot be read to its end; what is left of it is not written")
    numbers.flush()
    count = numbers.tell() // ABOUT.itemsize
    # An empty file cannot be mapped.
    return np.memmap(numbers, ABOUT, "r+", shape=(count,)) if count else np.zeros(0, ABOUT)


def _scanned(scanner: Scanner, item: tuple[int, int, bool, Chunk]) -> tuple[int, Scanned]:
    source, number, is_ancestor, chunk = item
    scanned = scanner(chunk, compared_only=is_ancestor)
    scanned.about["source"] = number
    return source, scanned


def _tokenizer(args: DataCheckArguments) -> Any:
    if args.model is None:
        return None
    from transformers import AutoTokenizer

    from hftune.models.loading.from_pretrained import pretrained

    return pretrained(AutoTokenizer, args.model, trust_remote_code=args.trust_remote_code)


def _learn_losses(
    args: DataCheckArguments, result: Result, about: np.ndarray, found: _Findings, folder: Path | None
) -> None:
    """The loss of each record, of which those are told that are far above the others; all stand in a file."""
    from hftune.tools.checking.losses import Losses, Outlying

    # Records of ancestors stand before those that are checked.
    first = sum(source.tally.records for source in result.sources if source.is_ancestor)
    losses = np.full(len(about), np.nan, np.float32)
    with ExitStack() as stack:
        stream = stack.enter_context((folder / LOSSES).open("x", encoding="utf-8")) if folder else None
        bar = stack.enter_context(tqdm(unit=" records", desc="losses", delay=2, total=len(about) - first))
        for number, file, line, loss in Losses(args).of(result.checked, parse_columns(args.columns)):
            losses[first + number] = loss
            bar.update(1)
            if stream is not None:
                stream.write(as_json({"file": file, "line": line, "loss": round(loss, 5)}) + "\n")
    outlying = Outlying(losses)
    result.median_loss = outlying.median
    files, owners = result.files, result.owners
    worst = np.argsort(-np.nan_to_num(losses, nan=-np.inf), kind="stable")[:_EXAMPLES]
    for record in [one for one in worst.tolist() if np.isfinite(losses[one])]:
        result.worst.append((f"{files[about[record]['source']]}:{about[record]['line']}", float(losses[record])))
    for record in outlying.numbers(losses):
        about[record]["kinds"] |= mask_of({LOSS})
        number, line = int(about[record]["source"]), int(about[record]["line"])
        reason = f"loss {losses[record]:.2f}, the median is {outlying.median:.2f}"
        found.add(Finding(LOSS, files[number], line, reason), owners[number])


# --- comparing ---


def _decide(result: Result, about: np.ndarray, found: _Findings) -> np.ndarray:
    """Whether each record is kept; tells of equal records, and of nearly equal ones."""
    twins = find_twins(about["exact"], about["shingles"], about["signature"])
    files, owner = result.files, result.owners
    ancestors = np.array([source.is_ancestor for source in owner], bool)[about["source"]]
    sound = (about["kinds"] & mask_of(result.dropped)) == 0
    kept = sound.copy()
    for record, twin, kind, words in _twins(twins):
        if ancestors[record]:
            continue
        kind = TRAINED if ancestors[twin] else kind
        one, other = about[record], about[twin]
        one["kinds"] |= mask_of({kind})
        reason = f"{words} {files[other['source']]}:{other['line']}"
        found.add(Finding(kind, files[one["source"]], int(one["line"]), reason), owner[one["source"]])
        if kind in result.dropped:
            # One of them stays: where the earlier one is left out for another reason, the later one takes its place.
            # What an earlier one equals is as near to others as that one is.
            kept[record] &= not (ancestors[twin] or (sound if kind == DUPLICATE else kept)[twin])
    _count(result, about, kept, ancestors)
    return kept & ~ancestors


def _twins(twins: Twins) -> Iterator[tuple[int, int, str, str]]:
    """(record, twin, kind, words) of all that have one, in the order of the records."""
    for record in np.flatnonzero((twins.equal != NONE) | (twins.near != NONE)).tolist():
        if twins.equal[record] != NONE:
            yield record, int(twins.equal[record]), DUPLICATE, "equals"
        else:
            share = f"nearly equals (similarity {twins.similarity[record]:.2f})"
            yield record, int(twins.near[record]), NEAR, share


def _count(result: Result, about: np.ndarray, kept: np.ndarray, ancestors: np.ndarray) -> None:
    result.kept = int((kept & ~ancestors).sum())
    dropped = mask_of(result.dropped)
    masks, counts = np.unique(about["kinds"][~kept & ~ancestors] & dropped, return_counts=True)
    for mask, count in zip(masks.tolist(), counts.tolist(), strict=True):
        result.left_out[kinds_in(mask)[0]] += count


# --- writing ---


def _write(folder: Path, result: Result, about: np.ndarray, kept: np.ndarray) -> None:
    written: dict[str, str] = {}
    for source in result.checked if result.dropped else ():
        for number, file in enumerate(source.files, start=source.first):
            # Records lie in the order in which they were read.
            own = slice(*np.searchsorted(about["source"], [number, number + 1]))
            if str(file) not in source.failed and kept[own].any():
                target = _target(folder / KEPT, source, file, set(written))
                written[str(write_kept(file, target, about["line"][own], kept[own]).relative_to(folder))] = str(file)
    write_report(folder, result)
    described = {
        "records": sum(source.tally.records for source in result.checked),
        "kept": result.kept,
        "left_out": dict(result.left_out.most_common()),
        "left_out_for": sorted(result.dropped),
        **({} if result.median_loss is None else {"median_loss": result.median_loss}),
        "files": written,
        "sources": {source.name: source.tally.to_dict() for source in result.checked},
    }
    (folder / SUMMARY).write_text(as_json(described, indent=1) + "\n", encoding="utf-8")


def _target(folder: Path, source: Source, file: Path, taken: set[str]) -> Path:
    """A place below `kept` with the file's name, as in its folder; another one where two sources have the same."""
    root = Path(source.name).expanduser()
    name = file.relative_to(root) if root.is_dir() and file.is_relative_to(root) else Path(file.name)
    found, number = name, 1
    while str(Path(KEPT) / found).removesuffix(".gz").removesuffix(".zst") in taken:
        number += 1
        found = name.with_name(f"{number}-{name.name}")
    return folder / found
