"""Shows live progress of a stage: one line of a terminal, or lines in a log."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hftune.secrets import redact
from hftune.tools.reporting.progress import Moment
from hftune.visible import clock, visible

_PLAIN_SECONDS = 30.0
_BAR = 24


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
        line.append(f" {str(moment) or 'loading'}, {clock(time.monotonic() - self.began)}")
        line.truncate(self.console.width, overflow="ellipsis")
        return line
