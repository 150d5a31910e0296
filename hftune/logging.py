"""What hftune says while it works: one logger, rank 0 only unless asked otherwise.

`notice` is for things a user must be able to see (something was dropped, truncated, renamed, ignored or chosen for
them). Notices are also kept, so that the manifest can list them.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import TextIO

from hftune import terminal
from hftune.secrets import redact
from hftune.visible import as_typed, visible

_notices: list[str] = []


class _TerminalHandler(logging.StreamHandler[TextIO]):
    """Writes to where standard error leads now: a script gives its own lines another way than those of libraries."""

    @property
    def stream(self) -> TextIO:
        """Standard error, as the user sees it."""
        # Looked up each time: `terminal.capture` may take over standard error after this handler was made.
        return self._given or terminal.err()

    @stream.setter
    def stream(self, given: TextIO) -> None:
        self._given = None if given is sys.stderr else given


class _SafeFormatter(logging.Formatter):
    """Lines without secrets, tracebacks included, whose hidden characters are spelt out: they quote data and paths."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(redact(super().format(record)))


def get_logger(name: str = "hftune") -> logging.Logger:
    """The logger of a module; messages of ranks above 0 are shown from WARNING up."""
    logger = logging.getLogger(name)
    root = logging.getLogger("hftune")
    if not root.handlers:
        handler = _TerminalHandler(sys.stderr)
        handler.setFormatter(_SafeFormatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
        root.addHandler(handler)
        # Libraries put handlers on the root logger, which would print each line again.
        root.propagate = False
    # The launcher sets RANK before Python starts; torch.distributed need not be up to know it.
    root.setLevel(logging.INFO if os.environ.get("RANK", "0") == "0" else logging.WARNING)
    return logger


def notice(message: str) -> None:
    """Say something the user must be able to see, once, and keep it for the manifest."""
    message = as_typed(redact(message))
    # Parsing and planning may resolve the same arguments twice in one process.
    if message not in _notices:
        _notices.append(message)
        get_logger().info(message)


def notices() -> list[str]:
    """All notices so far, in order."""
    return list(_notices)


def quiet_libraries() -> None:
    """Have libraries say only what concerns a user. Call it before importing transformers; safe to call twice."""
    # transformers 5.23 renames a flag that 5.17 does not have under its new name yet.
    warnings.filterwarnings("ignore", message="`gradient_checkpointing.*is deprecated", category=FutureWarning)
    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # peft imports both, which warn of optional kernels that nobody asked for; torch warns of torchao's enums.
    for library in ("bitsandbytes", "torchao", "torch.utils._pytree"):
        logging.getLogger(library).setLevel(logging.ERROR)
