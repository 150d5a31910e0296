"""Text from data, model folders and manifests, as a reader may safely be shown it: in a terminal, in HTML, in Markdown.

A terminal obeys what is hidden in a text: it moves, hides, sets titles and clipboards. What would be obeyed, or would
turn the order of letters around, is spelt out here: ESC becomes the four characters `\\x1b`.
"""

from __future__ import annotations

import html as _html
import json
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, TextIO

from hftune import terminal
from hftune.secrets import redact, redacted

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but for tab and line feed, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that turn text around
    "\u2028\u2029\ufeff\ufff9-\ufffb\ud800-\udfff"  # line ends, annotations, halves of characters
    "\U000e0000-\U000e007f]"  # letters that nobody sees
)


def visible(text: object) -> str:
    """A text whose hidden characters are spelt out; lines stay lines."""
    # Files from Windows end their lines with both characters; a lone CR would let a text overwrite its own start.
    return _HIDDEN.sub(_spelt, str(text).replace("\r\n", "\n"))


def _spelt(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


TYPED = "HFTUNE_TYPED"
"""Variable that is set below the command `hftune`: its stages are scripts of their own processes."""
_SCRIPT = re.compile(r"(?<![\w./-])(?:python )?(?:run_([a-z]+)|(merge)_peft_adapter)\.py\b")


def as_typed(message: str) -> str:
    """A message that names scripts, with the subcommands of `hftune` in their place where those were typed.

    An installed package has no scripts that a user could start.
    """
    if TYPED not in os.environ or "hftune launch" in message:
        return message
    return _SCRIPT.sub(lambda found: f"hftune {found[1] or found[2]}", message)


def say(text: object = "", *, end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Print a text without secrets, with what is hidden in it spelt out: the only way in which hftune prints."""
    stream = file or terminal.out()
    # With its end in one write: another thread's line would come between.
    shown = visible(redact(str(text))) + end
    with terminal.readers_may_leave(stream):
        try:
            print(shown, end="", file=stream, flush=flush)
        except UnicodeEncodeError as error:  # an output that is not UTF-8: LC_ALL=de_DE.ISO-8859-1
            spelt = shown.encode(error.encoding, "backslashreplace").decode(error.encoding)
            print(spelt, end="", file=stream, flush=flush)


def hide_in_tracebacks() -> None:
    """From here on what Python says of an error that nobody caught is shown like everything else."""

    def shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        say("".join(traceback.format_exception(kind, error, trace)), end="", file=terminal.err(), flush=True)

    def shown_of_thread(what: threading.ExceptHookArgs) -> None:
        if what.exc_value is not None and not isinstance(what.exc_value, SystemExit):
            name = what.thread.name if what.thread is not None else "?"
            say(f"Exception in thread {name}:", file=sys.stderr)
            # Threads of libraries carry the same secrets in their tracebacks as the main one.
            shown(what.exc_type, what.exc_value, what.exc_traceback)

    # A debugger's or notebook's hook stays.
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = shown
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = shown_of_thread


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON without secrets that shows a terminal nothing hidden, and means the same."""
    # `ensure_ascii` would make Chinese unreadable; only what a terminal obeys is escaped.
    text = json.dumps(redacted(value), indent=indent, ensure_ascii=False)
    return _HIDDEN.sub(lambda found: json.dumps(found.group())[1:-1], text)


def whole(text: str) -> str:
    """A text that was cut between tokens, without the part of a character that is left at its end."""
    # A byte-level tokenizer decodes the first bytes of a character to U+FFFD.
    return text.rstrip("\ufffd")


def clock(seconds: float) -> str:
    """Seconds as 42 s, 3:07 or 2:15:00."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


_FIGURES = {
    "tokens_per_second": "{:,.0f} tokens/s",
    "learning_rate": "lr {:.3g}",
    "grad_norm": "grad norm {:.3g}",
    "mfu": "MFU {:.1%}",
    "memory_gb": "{:.3g} GB",
}


def figures(logged: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """`loss 6.526`, `2,269 tokens/s`: what was logged under those names that are numbers."""
    known = {name: logged[name] for name in names if isinstance(logged.get(name), int | float)}
    return [
        _FIGURES[name].format(value) if name in _FIGURES else f"{name} {value:.4g}" for name, value in known.items()
    ]


def progress_figures(logged: Mapping[str, Any], left: Iterable[str]) -> list[str]:
    """The words of a line of progress, with the time that is left; what a narrow terminal cuts off stands last."""
    first = figures(logged, ("loss", "reward", "tokens_per_second"))
    return [*first, *left, *figures(logged, ("learning_rate", "grad_norm", "mfu", "memory_gb"))]


def html(value: object) -> str:
    """A value as text of a page, or of an attribute in quotes."""
    return _html.escape(visible(value))


def markdown(value: object) -> str:
    """A value as text on one line of Markdown, or in a cell of a table: it makes no cell, tag, link or line."""
    # Backslashes before a sign are doubled, or they would undo its escape.
    text = re.sub(r"(\\*)([|<`])", r"\1\1\\\2", visible(value).strip())
    return re.sub(r"\n", "<br>", text.replace("](", r"]\(").replace("][", r"]\["))


def code(value: object) -> str:
    """A value between backticks, one more than stand together in it; as such it is shown, whatever it says."""
    text = " ".join(visible(value).split())
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence, pad = "`" * (longest + 1), " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text or ' '}{pad}{fence}"
