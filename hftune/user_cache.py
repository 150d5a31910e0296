"""The folder where hftune keeps what it found out once, for all runs of a user."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Where hftune keeps what it finds out once: the environment's HFTUNE_CACHE, else ~/.cache/hftune."""
    return Path(os.environ.get("HFTUNE_CACHE") or "~/.cache/hftune").expanduser()


def write_whole(file: Path, content: bytes) -> None:
    """Whole or not at all: another process may be writing, or reading, the same file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as aside:
        aside.write(content)
    os.replace(aside.name, file)
