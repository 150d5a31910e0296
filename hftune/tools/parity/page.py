"""Outcomes as lines of a terminal, and as tables of docs/parity.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hftune.errors import ArgumentError
from hftune.opening.files import read_bytes
from hftune.publishing.disk import write_file
from hftune.tools.parity.measure import Outcome

BEGIN, END = "<!-- parity -->\n", "<!-- end -->"
_LARGEST = 16 << 20


def line(outcome: Outcome) -> str:
    """`holds  SFT: ...: 3.41 and 3.41, 2.1e-07 apart (loss, step 2)`."""
    if outcome.problem:
        return f"{_word(outcome)}  {outcome.row.what}: {outcome.problem}"
    return (
        f"{_word(outcome)}  {outcome.row.what}: {outcome.found:.6g} and {outcome.wanted:.6g}, "
        f"{outcome.difference:.1e} apart, {outcome.tolerance:.0e} allowed ({outcome.at})"
    )


def _word(outcome: Outcome) -> str:
    if outcome.left_out:
        return "left out"
    return "holds" if outcome.holds else "known" if outcome.row.upstream else "FAILS"


def tables(outcomes: Sequence[Outcome], machine: str, seconds: float) -> Iterator[str]:
    """Lines of Markdown: a sentence, then a table under the heading of each group."""
    held = sum(outcome.holds for outcome in outcomes)
    yield f"{held} of {len(outcomes)} rows hold; measured in {seconds / 60:.0f} minutes on {machine}."
    for group in dict.fromkeys(outcome.row.group for outcome in outcomes):
        yield from ("", f"### {group}", "", "| | found | expected | apart | allowed |", "|---|---:|---:|---:|---:|")
        yield from (_cells(outcome) for outcome in outcomes if outcome.row.group == group)


def _cells(outcome: Outcome) -> str:
    what = outcome.row.what.replace("|", "\\|")
    if outcome.row.upstream:
        what += f" ([upstream]({outcome.row.upstream}))"
    if outcome.problem:
        return f"| {what} | {outcome.problem.replace('|', ' ')} | | | |"
    mark = "" if outcome.holds else " **fails**"
    allowed = f"{outcome.tolerance:.0e}" if outcome.tolerance else "0"
    apart = f"{outcome.difference:.1e}" if outcome.difference else "0"
    return f"| {what} | {outcome.found:.7g} | {outcome.wanted:.7g} | {apart}{mark} | {allowed} |"


def write_docs(page: Path, lines: Iterator[str]) -> None:
    """Between the marks of the page.

    Raises:
        ArgumentError: There is no such page: a wheel has none.
    """
    if not page.is_file():
        fix = "do this in a checkout of hftune"
        raise ArgumentError(f"there is no {page}", place="--write-docs", fix=fix)
    before, _, rest = read_bytes(page, limit=_LARGEST).decode().partition(BEGIN)
    write_file(page, before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2])
