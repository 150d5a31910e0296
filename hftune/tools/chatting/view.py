"""An answer in the terminal while it is generated: thoughts folded to a line, calls as a line each."""

from __future__ import annotations

from collections.abc import Callable

from hftune import terminal
from hftune.tools.talking.parsing import Part
from hftune.tools.talking.written_turns import CALLS, THOUGHT
from hftune.visible import as_json, say


def note(text: str) -> None:
    """A line that no model has said: on standard error, so that a pipe gets the answers alone."""
    say(text, file=terminal.err(), flush=True)


class AnswerView:
    """Shows the parts of one answer.

    Args:
        count: Tokens of a text.
        thoughts: Whether thoughts are shown as they come, or folded.
    """

    def __init__(self, count: Callable[[str], int], *, thoughts: bool) -> None:
        self.count, self.thoughts = count, thoughts
        self.thought = self._held = ""
        self._thinking = self._begun = self._inside = False

    def show(self, part: Part) -> None:
        """Show one part."""
        if part.kind == THOUGHT:
            self._think(part.text)
            return
        self._fold()
        if part.kind == CALLS and part.call is not None:
            self._break()
            function = part.call["function"]
            say(f"[call] {function['name']} {as_json(function['arguments'])}", flush=True)
        else:
            self._write(part.text)

    def end(self, cut: str = "") -> None:
        """End the answer's last line, and say why it was cut."""
        self._fold()
        self._write(self._held, last=True)
        self._break()
        if cut:
            note(f"[{cut}]")

    def _think(self, text: str) -> None:
        if self.thoughts:
            if not self._thinking:
                say("[thought]")
                self._begun = False
            self._write(text)
        else:
            terminal.show_progress(f"thinking ({len(self.thought) + len(text)} characters)")
        self._thinking = True
        self.thought += text

    def _fold(self) -> None:
        """End a thought: its line, where it is folded."""
        if not self._thinking:
            return
        terminal.clear_progress()
        self._thinking = False
        self._break()
        tokens = self.count(self.thought)
        size = f"{tokens} token{'s' * (tokens != 1)}"
        say("[end of thought]" if self.thoughts else f"[thought for {size}; /think shows it]", flush=True)
        self._begun = False

    def _write(self, text: str, *, last: bool = False) -> None:
        text, self._held = ("" if last else self._held) + text, ""
        # A carriage return may be half of a line's end.
        if text.endswith("\r") and not last:
            text, self._held = text[:-1], "\r"
        if not self._begun:
            text = text.lstrip("\n")
        if text:
            self._begun = True
            self._inside = not text.endswith("\n")
            say(text, end="", flush=True)

    def _break(self) -> None:
        if self._inside:
            say(flush=True)
        self._inside = False
