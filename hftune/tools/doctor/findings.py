"""Findings: a line each, with what to do where something is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from hftune.secrets import redact
from hftune.visible import as_json

FINE, NOTE, WRONG = "fine", "note", "wrong"
MARKS = {FINE: "  ok ", NOTE: "note ", WRONG: "WRONG"}


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        topic: What it belongs to: "libraries", "GPU", "launch", ...
        said: What there is, or what is wrong, in a line.
        level: FINE; NOTE: some runs are slower or refused; WRONG: runs will fail.
        fix: What to do about it.
    """

    topic: str
    said: str
    level: str = FINE
    fix: str | None = None


def render(findings: Iterable[Finding]) -> str:
    """The findings as text: a line each under its topic, and last how many are wrong."""
    lines: list[str] = []
    topic, wrong, notes = None, 0, 0
    for found in findings:
        if found.topic != topic:
            lines.append(found.topic)
        topic = found.topic
        lines.append(f"  {MARKS[found.level]}  {found.said}")
        if found.fix:
            lines.append(f"         to do: {found.fix}")
        wrong, notes = wrong + (found.level == WRONG), notes + (found.level == NOTE)
    verdict = f"{wrong} thing(s) wrong" if wrong else "nothing is wrong"
    lines.append(f"{verdict}, {notes} note(s)" if notes else verdict)
    # Values of environment variables are shown, and a URL in one may hold a password.
    return redact("\n".join(lines))


def to_json(findings: Iterable[Finding]) -> str:
    """The findings as JSON, for programs: one object with all of them."""
    found = [asdict(one) for one in findings]
    return as_json({"wrong": sum(one["level"] == WRONG for one in found), "findings": found})
