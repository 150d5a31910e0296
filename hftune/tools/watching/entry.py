"""`hftune watch FOLDER`: a table of all runs, and the one that is written now with its curves and last words."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hftune.errors import ArgumentError, ManifestError
from hftune.opening.files import MIB
from hftune.opening.json_file import parse_json, read_json
from hftune.path_hints import path_hint
from hftune.secrets import redact
from hftune.tools.reporting.page import spark
from hftune.tools.reporting.progress import with_speed
from hftune.tools.reporting.stages import ANSWERS, COMPLETIONS, SHAPES, Points, curves_of
from hftune.tools.reporting.svg import short
from hftune.tools.reporting.tables import rewards_of, said
from hftune.tools.watching.runs import FINISHED, RUNNING, SILENT, STOPPED, UNREADABLE, Runs, Watched, last_words, tail
from hftune.tools.words import taken
from hftune.visible import clock, figures, say, visible

_BAR = 16
_COLOURS = {RUNNING: "green", FINISHED: "cyan", STOPPED: "yellow", SILENT: "yellow", UNREADABLE: "red"}
_SAID, _LETTERS = 2, 600
_LINES = 6


def view(runs: Sequence[Watched]) -> Group:
    """All runs, and in full the one that was written last."""
    if not runs:
        return Group(Text("no run has begun here", "dim"))
    shown = next((run for run in reversed(runs) if run.state == RUNNING), runs[-1])
    parts: list[Any] = [_table(runs), Text()] if len(runs) > 1 else []
    return Group(*parts, *_whole(shown))


def line(run: Watched) -> str:
    """A run on one line: `sft: step 3/10, loss 1.235, 12,346 tokens/s, 0:35 left`."""
    return f"{run.name}: {run.moment()} ({run.state})" if run.log.lines else f"{run.name}: {run.state}"


def _safe(value: object, style: str = "") -> Text:
    """A text in which a terminal finds nothing to obey, without secrets, on one line."""
    return Text(" ".join(visible(redact(str(value))).split()), style)


def _table(runs: Sequence[Watched]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("run", overflow="ellipsis", no_wrap=True)
    for name in ("state", "", "step", "loss", "speed", "left"):
        table.add_column(name, no_wrap=True, justify="left" if name in ("state", "") else "right")
    for run in runs:
        moment = run.moment()
        table.add_row(
            _safe(run.name, "bold"),
            Text(run.state, _COLOURS.get(run.state, "dim")),
            _bar(moment.step, moment.max_steps),
            Text(f"{moment.step}/{moment.max_steps}" if moment.max_steps else ""),
            Text("".join(figures(moment.figures, ["loss"])).removeprefix("loss ")),
            Text("".join(figures(moment.figures, ["tokens_per_second"]))),
            Text(clock(moment.seconds_left) if moment.seconds_left is not None else ""),
        )
    return table


def _bar(step: int, of: int) -> Text:
    done = min(_BAR, round(_BAR * step / of)) if of else 0
    return Text.assemble(("━" * done, "green"), ("─" * ((_BAR - done) if of else 0), "dim"))


def _whole(run: Watched) -> Iterator[Any]:
    state = run.state
    moment = run.moment()
    head = Text.assemble(_safe(run.name, "bold"), "  ", (state, _COLOURS.get(state, "dim")), "  ")
    yield Text.assemble(head, _bar(moment.step, moment.max_steps))
    if run.fault:
        yield _safe(run.fault, "red")
        return
    yield Text(str(moment) or run.state) if run.log.lines else Text("nothing is logged yet", "dim")
    if state == SILENT:
        yield Text(f"nothing was written for {clock(run.quiet())}: it was killed, or waits", "yellow")
    curves = curves_of(with_speed(run.log.lines))
    if curves:
        yield _curves(curves)
    if saved := run.checkpoints():
        yield Text(f"checkpoints: {', '.join(map(str, saved[-6:]))}", "dim")
    yield from _said(run)
    if state not in (RUNNING, FINISHED):
        yield from _last_words(run)


def _curves(curves: dict[str, dict[str, Points]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for title, found in curves.items():
        for label, points in found.items():
            table.add_row(
                Text(title if len(found) == 1 else f"{title}, {label}", "dim"),
                Text(spark(points), "green"),
                Text(f"{short(points[1][0])} → {short(points[1][-1])}"),
            )
    return table


def _last_words(run: Watched) -> Iterator[Text]:
    """Of a run that does not train: why may stand in its log, or in that of its pipeline."""
    for folder in (run.folder, run.folder.parent):
        if not folder.is_relative_to(run.top):
            continue
        name, lines = last_words(folder, run.top, _LINES)
        if lines:
            yield Text.assemble("\n", _safe(name, "dim"))
            yield from (_safe(text[:_LETTERS]) for text in lines)
            return


def _said(run: Watched) -> Iterator[Text]:
    """The last answers of RL, or what was asked of the model."""
    for step, who, question, answer in last_answers(run):
        yield Text.assemble("\n", _safe(step, "dim"), "  ", _safe(who, "dim"))
        yield Text.assemble(("  ? ", "dim"), _safe(question[:_LETTERS]))
        yield Text.assemble(("  > ", "dim"), _safe(answer[:_LETTERS]))


def last_answers(run: Watched) -> list[tuple[str, str, str, str]]:
    """The step, who or what reward, the prompt and the answer of the last samples; none where there are none."""
    with suppress(ManifestError, *SHAPES):
        rows = [parse_json(text, COMPLETIONS, finite=False) for text in tail(run.folder / COMPLETIONS, _SAID)]
        if rows:
            return [
                (f"step {row['step']}", rewards_of(row.get("rewards")), said(row["prompt"]), said(row["completion"]))
                for row in rows
            ]
    with suppress(ManifestError, *SHAPES):
        found = read_json(run.folder / ANSWERS, limit=16 * MIB, finite=False)
        questions, (model, answers) = found["questions"], list(found["answers"].items())[-1]
        return [("", str(model), str(q), str(a)) for q, a in list(zip(questions, answers, strict=False))[:_SAID]]
    return []


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False)


def show(folders: Sequence[str], console: Console | None = None) -> None:
    """Print how the runs of folders do.

    Raises:
        ManifestError: There is none.
    """
    runs = Runs(folders).read()
    if not runs:
        cause = f"no run has begun in {', '.join(folders)}"
        raise ManifestError(cause, place=folders[0], fix="give the output folder of a stage or of a pipeline")
    (console or _console()).print(view(runs))


def follow(folders: Sequence[str], every: float, console: Console | None = None) -> None:
    """Show the runs of folders every few seconds; of a single stage until it has finished, else for ever."""
    console = console or _console()
    found = Runs(folders)
    if console.is_terminal and not console.is_dumb_terminal:  # where rich draws nothing
        # What does not fit into the terminal is cut off below; the last picture stays when it ends.
        with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
            while not _ended(found):
                live.update(view(found.read()), refresh=True)
                time.sleep(0 if _ended(found) else every)
        return
    said: dict[Path, str] = {}
    while not _ended(found):
        for run in found.read():
            text = " ".join(line(run).split())
            if said.get(run.folder) != text:
                said[run.folder] = text
                say(text, flush=True)
        time.sleep(0 if _ended(found) else every)


def _ended(found: Runs) -> bool:
    """Whether a single stage was asked for, and has finished: what a pipeline does next nobody knows here."""
    return [(run.folder, run.state) for run in found.all.values()] == [(found.tops[0], FINISHED)]


HELP = """Shows how the runs of a folder do: a stage's output folder, a pipeline's, or one with such folders below it.

hftune watch FOLDER [FOLDER ...]       until Ctrl-C; of a single stage until it has finished
hftune watch FOLDER --once             once, for scripts: exit code 2 where there is no run
--every SECONDS                        between two looks; left out: 1

Only files are read, so that the run may be on another machine that shares the folder."""
_FEWEST = 0.1


def watch(argv: list[str]) -> None:
    """Follow the runs of folders.

    Raises:
        ArgumentError: A word too many, or no folder.
        ManifestError: With `--once`, there is no run.
    """
    if not argv or {"-h", "--help"} & {*argv}:
        say(HELP)
        return
    folders, given = taken("hftune watch", argv, switches={"--once"}, values={"--every": "5"})
    every = _seconds(given.get("--every", "1"))
    if not folders:
        raise ArgumentError("`hftune watch` needs a folder", fix="hftune watch outputs/lora")
    for folder in folders:
        if not os.path.isdir(Path(folder)):
            fix = path_hint(folder, "the output folder of a stage or of a pipeline")
            raise ArgumentError(f"there is no folder {folder}", place="hftune watch", fix=fix)
        if not os.access(folder, os.R_OK | os.X_OK):
            fix = "make it readable for you (ls -ld shows whose it is), or name another folder"
            raise ArgumentError(f"{folder} cannot be read", place="hftune watch", fix=fix)
    if "--once" in given:
        show(folders)
    else:
        follow(folders, every)


def _seconds(text: str) -> float:
    if not text.replace(".", "", 1).isdecimal() or float(text) < _FEWEST:
        raise ArgumentError(f"--every takes seconds, not {text!r}", place="--every", fix="--every 5")
    return float(text)
