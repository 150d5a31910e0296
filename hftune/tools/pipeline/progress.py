"""Shows live progress, read from `progress.jsonl` of a stage: one line of a terminal, or lines in a log."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hftune.errors import ManifestError
from hftune.opening.json_file import parse_json
from hftune.secrets import redact
from hftune.visible import clock, visible

NAME = "progress.jsonl"
_PLAIN_SECONDS = 30.0
_BAR = 24


@dataclass
class Moment:
    """The progress of a stage; None for what is not known yet."""

    step: int = 0
    max_steps: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds_left: float | None = None

    def __str__(self) -> str:
        parts = [f"step {self.step}/{self.max_steps}"] if self.max_steps else []
        parts += [f"loss {self.loss:.4g}"] if self.loss is not None else []
        parts += [f"{self.tokens_per_second:,.0f} tokens/s"] if self.tokens_per_second is not None else []
        parts += [f"{clock(self.seconds_left)} left"] if self.seconds_left is not None else []
        return ", ".join(parts) or "loading"


class Follower:
    """Reads what is added to a progress file since it was made; what earlier runs left there is skipped."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / NAME
        self.offset = self.file.stat().st_size if self.file.is_file() else 0
        self.lines: list[dict[str, Any]] = []
        self.moment = Moment()

    def read(self) -> bool:
        """Read new lines; returns whether there were any."""
        if not self.file.is_file():
            return False
        with self.file.open("rb") as stream:
            stream.seek(self.offset)
            added = stream.read()
        # The last line may be half written: it is read when its end has come.
        whole = added[: added.rfind(b"\n") + 1]
        self.offset += len(whole)
        new = [entry for line in whole.splitlines() if (entry := _entry(line)) is not None]
        if new:
            # Speed over the last few logs: the first steps compile and warm up.
            self.lines = [*self.lines, *new][-20:]
            self.moment = _moment(self.lines)
        return bool(new)


def _entry(line: bytes) -> dict[str, Any] | None:
    """A line as a run logs it; None for anything else."""
    try:
        # A loss may be NaN, and a broken line is no reason to end a stage that runs.
        found: dict[str, Any] = parse_json(line, NAME, finite=False)
    except ManifestError:
        return None
    return found if all(isinstance(found.get(key), int | float) for key in ("step", "max_steps", "time")) else None


def _moment(lines: list[dict[str, Any]]) -> Moment:
    last, first = lines[-1], lines[0]
    losses = [line["loss"] for line in lines if "loss" in line]
    seconds, steps = last["time"] - first["time"], last["step"] - first["step"]
    counted = [line for line in lines if line.get("tokens") is not None]
    speed = None
    if len(counted) > 1 and counted[-1]["time"] > counted[0]["time"]:
        speed = (counted[-1]["tokens"] - counted[0]["tokens"]) / (counted[-1]["time"] - counted[0]["time"])
    return Moment(
        step=last["step"],
        max_steps=last["max_steps"],
        loss=losses[-1] if losses else None,
        # Counters fall when a stage is restarted within the lines that are kept.
        tokens_per_second=speed if speed is None or speed > 0 else None,
        seconds_left=seconds / steps * (last["max_steps"] - last["step"]) if steps > 0 and seconds > 0 else None,
    )


class Screen:
    """Prints what happens: on a terminal as a line that changes in place, else as lines of a log.

    Args:
        console: Where to; left out: standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True, markup=False)
        self._live: Live | None = None
        self._spoken = 0.0

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(visible(redact(text)))

    def begin(self, title: str) -> None:
        """Begin showing a step."""
        self.title, self.began, self._spoken = title, time.monotonic(), time.monotonic()
        if self.console.is_terminal and not self.console.is_dumb_terminal:  # where rich draws nothing
            # No thread that refreshes: the runner forks, and draws each time it looks.
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()

    def show(self, moment: Moment, *, new: bool) -> None:
        """Show where the step is now."""
        now = time.monotonic()
        if self._live is not None:
            self._live.update(self._line(moment), refresh=True)
        # A log gets a line at most every half minute, and only when there is something new.
        elif new and now - self._spoken >= _PLAIN_SECONDS:
            self._spoken = now
            self.console.print(visible(f"{self.title}: {moment}"))

    def end(self) -> None:
        """Stop showing the step."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _line(self, moment: Moment) -> Text:
        done = round(_BAR * moment.step / moment.max_steps) if moment.max_steps else 0
        line = Text.assemble((visible(f"{self.title} "), "bold"), ("━" * done, "green"), ("━" * (_BAR - done), "dim"))
        line.append(f" {moment}, {clock(time.monotonic() - self.began)}")
        line.truncate(self.console.width, overflow="ellipsis")
        return line
