"""What a check found: some lines for the terminal, and a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hftune.publishing.disk import write_file
from hftune.secrets import redact
from hftune.tools.checking.result import KINDS, Result
from hftune.tools.checking.sources import Source
from hftune.tools.reporting.page import html_document, html_table
from hftune.tools.reporting.tables import Section
from hftune.visible import html

REPORT = "report.html"


def summary(result: Result) -> str:
    """What was found, in a line or two for each source."""
    return "\n".join(
        [*(line for source in result.checked for line in _about(source)), *_worst(result), _left_out(result)]
    )


def _about(source: Source) -> Iterator[str]:
    tally, lengths = source.tally, source.tally.characters
    median, most = lengths.quantile(0.5), lengths.quantile(0.95)
    parts = [f"{tally.records:,} records ({_listed(tally.kinds)})"]
    parts.append(f"{median:,} characters at the median, {most:,} at 95 %, {lengths.longest:,} at most")
    if tally.tokens.total:
        parts.append(f"{tally.tokens.total:,} tokens")
    yield f"{source.name}: {'; '.join(parts)}"
    if tally.found:
        yield f"  found: {_listed(tally.found)}"


def _worst(result: Result) -> Iterator[str]:
    if result.worst:
        (origin, loss), *_ = result.worst
        yield f"median loss {result.median_loss:.3f}; the worst is {loss:.3f} of {origin}"


def _left_out(result: Result) -> str:
    records = sum(source.tally.records for source in result.checked)
    if not result.left_out:
        return f"nothing is left out of {records:,} records"
    return f"{result.kept:,} of {records:,} records are left; left out: {_listed(result.left_out)}"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common())


def write_report(folder: Path, result: Result) -> None:
    """Write the page into a folder."""
    title = f"Data check: {', '.join(Path(source.name).name for source in result.checked)}"
    sections = [_sources(result), _contents(result), _kinds(result), *_losses(result), *_examples(result)]
    body = f"<h1>{html(title)}</h1><p>{html(_left_out(result))}</p>" + "".join(map(html_table, sections))
    write_file(folder / REPORT, redact(html_document(title, body)))


def _sources(result: Result) -> Section:
    headers = ("source", "files", "records", "characters", "5 %", "median", "95 %", "longest", "tokens")
    rows = [
        (
            source.name,
            len(source.files),
            source.tally.records,
            source.tally.characters.total,
            *(source.tally.characters.quantile(share) for share in (0.05, 0.5, 0.95)),
            source.tally.characters.longest,
            source.tally.tokens.total or None,
        )
        for source in result.sources
    ]
    return Section("Sources", headers, rows, "Lengths are in characters; all but the longest are known to 5 %.")


def _contents(result: Result) -> Section:
    rows = [
        (
            source.name,
            _listed(source.tally.kinds),
            ", ".join(f"{turns}: {count:,}" for turns, count in sorted(source.tally.turns.items())[:12]),
            source.tally.tools,
            source.tally.thoughts,
        )
        for source in result.sources
    ]
    headers = ("source", "records", "turns: records", "with tools", "with thoughts")
    return Section("What is in them", headers, rows)


def _kinds(result: Result) -> Section:
    found: Counter[str] = Counter()
    for source in result.sources:
        found.update(source.tally.found)
    rows = [
        (kind, meaning, found[kind], "left out" if kind in result.dropped else "kept", result.left_out[kind])
        for kind, meaning in KINDS.items()
        if found[kind]
    ]
    headers = ("kind", "what it means", "findings", "its records are", "left out first for it")
    return Section("Findings", headers, rows, "A record may have several findings.")


def _losses(result: Result) -> Iterator[Section]:
    if result.worst:
        note = f"Mean losses of the tokens that would be learnt; the median is {result.median_loss:.3f}."
        yield Section("Least likely under the model", ("record", "loss"), result.worst, note)


def _examples(result: Result) -> Iterator[Section]:
    for kind, meaning in KINDS.items():
        if shown := result.examples.get(kind):
            rows = [(finding.origin, finding.reason) for finding in shown]
            yield Section(f"{kind}: {meaning}", ("record", "reason"), rows, f"The first {len(rows)}.")
