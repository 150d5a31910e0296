"""What hftune says while it works: one logger, rank 0 only unless asked otherwise.

`notice` is for things a user must be able to see (something was dropped, truncated, renamed, ignored or chosen for
them). Notices are also kept, so that the manifest can list them.
"""

from __future__ import annotations

import logging
import os
import sys

from hftune.secrets import redact
from hftune.visible import visible

_notices: list[str] = []


class _Shown(logging.Formatter):
    """Lines without secrets, tracebacks included, whose hidden characters are spelt out: they quote data and paths."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(redact(super().format(record)))


def get_logger(name: str = "hftune") -> logging.Logger:
    """The logger of a module; messages of ranks above 0 are shown from WARNING up."""
    logger = logging.getLogger(name)
    root = logging.getLogger("hftune")
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Shown("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
        root.addHandler(handler)
        root.propagate = False
    root.setLevel(logging.INFO if os.environ.get("RANK", "0") == "0" else logging.WARNING)
    return logger


def notice(message: str) -> None:
    """Say something the user must be able to see, once, and keep it for the manifest."""
    message = redact(message)
    if message not in _notices:
        _notices.append(message)
        get_logger().info(message)


def notices() -> list[str]:
    """All notices so far, in order."""
    return list(_notices)
