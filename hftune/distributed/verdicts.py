"""The watchdog's verdicts and messages, from the reports of the processes. Pure functions on plain values.

A report is `{"host", "step", "phase", "count", "seconds", "waits", "place", "stack", "ago"}`: phase and its number as
in `phases.Phase`, seconds in it, the collective (or data) that is waited for, the innermost frame, the stack, and how
many seconds ago this was said. One without a place is silent: frozen, gone, or in code that keeps the interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Report = dict[str, Any]
# With more, what matters would scroll out of a terminal.
_STACKS = 2
_ROWS = 24


@dataclass(frozen=True)
class Verdict:
    """A "hang", "lost" ranks, or one that has "failed" with its `words`; `reports` are by rank."""

    kind: str
    ranks: list[int]
    reports: dict[int, Report]
    words: str = ""


def judge(alarm: dict[str, Any], reports: dict[int, Report]) -> Verdict:
    """The verdict on an alarm.

    Args:
        alarm: The `words` of a lost contact of the `rank` that rang; or `ranks` that are gone; else it is a hang.
        reports: By rank; of those that have `left`, with their last words.
    """
    there = {rank: report for rank, report in reports.items() if not report.get("left")}
    silent = sorted(rank for rank, report in there.items() if _is_silent(report))
    for rank, report in reports.items():
        if report.get("words"):  # what the others say is what came of it
            return Verdict("failed", [rank], reports, report["words"])
    words = alarm.get("words")
    if gone := alarm.get("ranks") or (silent if words else []):
        return Verdict("lost", gone, reports)
    if words:
        return Verdict("failed", [alarm["rank"]], reports, words)
    return Verdict("hang", silent or behind_of(there), there)


def _is_silent(report: Report) -> bool:
    return "place" not in report


def behind_of(reports: dict[int, Report]) -> list[int]:
    """Ranks that hold up the others; none where all are at the same place."""
    # From the surest sign to the weakest: a process that waits in a collective cannot be what holds the others up.
    idle = [rank for rank, report in reports.items() if not report.get("waits")]
    # Steps first: phases are counted alike only by processes that do the same work.
    far = {rank: (report.get("step", 0), report.get("count", 0)) for rank, report in reports.items()}
    least = [rank for rank, value in far.items() if value == min(far.values())]
    return sorted(next((found for found in (idle, least) if 0 < len(found) < len(reports)), []))


def render(verdict: Verdict, rank: int, timeout: float, stack: str) -> str:
    """The whole message for one process, as it is printed; `timeout` in seconds, `stack` of this process."""
    lines = {"hang": _hang, "lost": _lost, "failed": _failed}[verdict.kind](verdict)
    if verdict.kind == "hang":
        fix = "look at what it does there; start again with --resume_from_checkpoint auto"
        lines.append(f"  to do: {fix}. Where it is only slow, raise --hang_timeout ({timeout:g} s)")
        # The stacks of the first ranks are in the verdict already.
        lines += [] if rank in verdict.ranks[:_STACKS] else _stack_of(rank, stack)
    who = f"[rank {rank}] " if rank else ""
    return f"\n{who}error: " + "\n".join(lines) + "\n\n"


def _hang(verdict: Verdict) -> list[str]:
    behind, reports = verdict.ranks, verdict.reports
    first = reports[behind[0] if behind else min(reports)]
    at = f"step {first.get('step')}, {first.get('phase')}"
    if not behind:
        said = f"nothing has moved for {_time(first)}: all {len(reports)} process(es) are at {at}"
    else:
        how = f"for {_time(first)}"
        if _is_silent(first):
            how = f"silent {how} (frozen, or in code that keeps the interpreter)"
        others = len(reports) - len(behind)
        said = f"the run hangs: {_names(verdict)} at {at}, {how}; {others} other process(es) wait"
    stacks = [line for rank in behind[:_STACKS] for line in _stack_of(rank, reports[rank].get("stack", ""))]
    return [said, f"  where: {_at(first)}", *_places(reports, behind), *stacks]


def _lost(verdict: Verdict) -> list[str]:
    gone = verdict.ranks
    first = verdict.reports[gone[0]]
    return [
        f"lost {_names(verdict)}: ended without a word{', together' * (len(gone) > 1)}, last heard "
        f"{first.get('ago', 0):.0f} s before, at step {first.get('step')}, {first.get('phase')}",
        "  where: killed from outside (out of memory, the scheduler), its machine or its network gone, or a crash: see "
        "the output there",
        "  to do: start again with --resume_from_checkpoint auto; on fewer processes, too",
    ]


def _failed(verdict: Verdict) -> list[str]:
    rank = verdict.ranks[0]
    report = verdict.reports[rank]
    where = f"rank {rank} on {report.get('host')} has stopped at step {report.get('step')}, {report.get('phase')}"
    return [f"{where}: {verdict.words}"]


def ranges(numbers: list[int]) -> str:
    """Sorted numbers as ranges: `0-2,5`."""
    pieces: list[list[int]] = []
    for number in numbers:
        if pieces and number == pieces[-1][1] + 1:
            pieces[-1][1] = number
        else:
            pieces.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pieces)


def _names(verdict: Verdict) -> str:
    """Its ranks and their machines: `ranks 0-2,5 on node1`."""
    found = verdict.ranks
    hosts = ", ".join(dict.fromkeys(str(verdict.reports[rank].get("host")) for rank in found))
    return f"rank{'s' * (len(found) > 1)} {ranges(sorted(found))} on {hosts}"


def _time(report: Report) -> str:
    return f"{report.get('ago' if _is_silent(report) else 'seconds') or 0:.0f} s"


def _at(report: Report) -> str:
    inside = f"in {report['waits']}, " if report.get("waits") else ""
    return f"{inside}{report.get('place') or 'not known'}"


def _places(reports: dict[int, Report], behind: list[int]) -> list[str]:
    """A line for all ranks of a machine that are at the same place; those behind come first."""
    groups: dict[str, list[int]] = {}
    for rank, report in sorted(reports.items(), key=lambda item: (item[0] not in behind, item[0])):
        where = "no answer" if _is_silent(report) else _at(report)
        at = f"step {report.get('step')}, {report.get('phase')} for {_time(report)}, {where}"
        # Grouped: with hundreds of ranks, most wait at the same place.
        groups.setdefault(f"on {report.get('host')}: {at}", []).append(rank)
    lines = [f"  {'>' if ranks[0] in behind else ' '} rank {ranges(ranks)} {said}" for said, ranks in groups.items()]
    left_out = len(lines) - _ROWS
    return [*lines[:_ROWS], *([f"    and {left_out} more rows"] if left_out > 0 else [])]


def _stack_of(rank: int, stack: str) -> list[str]:
    return [f"  main thread of rank {rank}, innermost last:", *(f"    {line}" for line in stack.splitlines())]
