"""The scripts' way in. A help page that was made before is shown at once; all else goes to the parser.

To know all arguments, transformers, TRL and PEFT must be imported, which takes seconds. A page depends on nothing but
the versions of these libraries, hftune's own arguments, the command line and the width of the terminal.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hftune.imports import collect_seldom, without_quantisers

HELP = {"-h", "--help"}
SHAPED_BY = ("hftune", "accelerate", "deepspeed", "peft", "torch", "transformers", "trl")


def parse_arguments(stage: str, argv: list[str] | None = None) -> tuple[Any, ...]:
    """The four groups of arguments of a stage: model, data, adapter and training.

    Args:
        stage: "pt", "sft", "rm", "dpo" or "rl".
        argv: The command line; left out: the process's own.

    Raises:
        ArgumentError: Everything that is wrong with them, in one message.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if HELP & {*given}:
        print(help_page(stage, given), end="")
        raise SystemExit(0)
    collect_seldom()
    with without_quantisers():
        from hftune.arguments import parser

    return parser.parse_arguments(stage, given)


def help_page(stage: str, argv: list[str]) -> str:
    """What `--help` prints: from the cache, or made now and kept there."""
    file = _folder() / f"{_key(stage, argv)}.txt"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return file.read_text(encoding="utf-8")
    from hftune.arguments import parser

    page = parser.help_of(stage, [word for word in argv if word not in HELP])
    with contextlib.suppress(OSError):  # no cache, no harm
        _write(file, page)
    return page


def _folder() -> Path:
    return Path(os.environ.get("HFTUNE_CACHE") or "~/.cache/hftune").expanduser() / "help"


def _key(stage: str, argv: list[str]) -> str:
    """A name for everything that a page depends on."""
    own = [file.stat() for file in sorted(Path(__file__).parent.rglob("*.py"))]
    parts = [
        stage,
        *argv,
        Path(sys.argv[0]).name,
        str(shutil.get_terminal_size().columns),
        sys.version,
        *(f"{package} {_version(package)}" for package in SHAPED_BY),
        *(f"{file.st_size} {file.st_mtime_ns}" for file in own),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _write(file: Path, page: str) -> None:
    """Whole or not at all: another process may be writing, or reading, the same page."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as aside:
        aside.write(page)
    os.replace(aside.name, file)
