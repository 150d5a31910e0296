"""Checks names of a pipeline's file that become folders."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hftune.errors import ArgumentError, UserError, shown
from hftune.tools.pipeline.yaml_positions import Positioned

# Bytes. Linux takes 255; the rest is for what hftune appends (`-merged`, `.dry_run`, numbers).
LONGEST = 100
_PLAIN = re.compile(r"[^\W_]([\w.+=,-]*\w)?|_\w*")
"""Letters, digits and _ at both ends: no separators, no `..` on its own, nothing that a program takes for a flag."""


def check_name(name: str, item: Positioned, what: str) -> Iterator[UserError]:
    """Problems of a name that cannot be that of a folder.

    Args:
        item: Where it stands.
        what: What it names, "a stage".
    """
    if not _PLAIN.fullmatch(name) or ".." in name or len(name.encode()) > LONGEST:
        yield ArgumentError(
            f"{shown(name) or 'nothing'} cannot be the name of a folder, and so not of {what}",
            place=item.name_place,
            fix=f"letters, digits, - _ . within, at most {LONGEST} bytes",
        )
