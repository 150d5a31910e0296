"""The scripts' way in. A help page that was made before is shown at once; all else goes to the parser.

To know all arguments, transformers, TRL and PEFT must be imported, which takes seconds. A page depends on nothing but
the versions of these libraries, hftune's own arguments, the command line and the width of the terminal.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from hftune.errors import DataError
from hftune.secrets import command_without_secrets
from hftune.user_cache import read_sealed, write_sealed
from hftune.visible import as_typed, say

if TYPE_CHECKING:
    from hftune.arguments.adapter import AdapterArguments
    from hftune.arguments.data import DataArguments
    from hftune.arguments.model import ModelArguments

HELP = {"-h", "--help"}
SHAPED_BY = ("accelerate", "deepspeed", "peft", "torch", "transformers", "trl")


Training = TypeVar("Training", covariant=True)


class RunArguments(NamedTuple, Generic[Training]):
    """The arguments of a run; `training` is the class of the stage, of RL that of the algorithm."""

    model: ModelArguments
    data: DataArguments
    adapter: AdapterArguments
    training: Training


def parse_arguments(stage: str, argv: list[str] | None = None) -> RunArguments[Any]:
    """The four groups of arguments of a stage: model, data, adapter and training.

    The class of the training arguments is found by `stage_table.STAGES`: no stage imports those of others.

    Args:
        stage: A key of `STAGES`.
        argv: The command line; left out: the process's own.

    Raises:
        ArgumentError: Everything that is wrong with them, in one message.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if HELP & {*given}:
        say(as_typed(help_page(stage, given)), end="")
        raise SystemExit(0)
    if argv is None:  # trackers keep the command line of the process as they find it
        sys.argv[1:] = command_without_secrets(given)
    from hftune.arguments import stages

    return RunArguments(*stages.parse_stage(stage, given))


def help_page(stage: str, argv: list[str]) -> str:
    """What `--help` prints: from the cache, or made now and kept there."""

    def made() -> str:
        from hftune.arguments import stages

        return stages.help_of(stage, [word for word in argv if word not in HELP])

    # argparse wraps to the width of the terminal.
    return kept("help", [stage, *argv, Path(sys.argv[0]).name, str(shutil.get_terminal_size().columns)], made)


def kept(folder: str, parts: Iterable[str], made: Callable[[], str]) -> str:
    """A text about all arguments: from the cache, or made now and kept there.

    Args:
        folder: Of the cache.
        parts: What it depends on, in addition to the arguments and the libraries below.
    """
    name = f"{_key(parts)}.page"
    found = read_sealed(folder, name)
    if found is not None:
        return found.decode()
    text = made()
    # What cannot be kept is made again next time.
    with contextlib.suppress(OSError, DataError):
        write_sealed(folder, name, text.encode())
    return text


def _key(parts: Iterable[str]) -> str:
    """A name for everything that a text depends on."""
    # hftune's own version says nothing in a checkout; sizes and times of these files do.
    files = [file for file in Path(__file__).parents[1].rglob("*") if file.suffix in (".py", ".csv")]
    own = [file.stat() for file in sorted(files)]
    whole = [
        *parts,
        sys.version,
        *(f"{package} {version(package)}" for package in SHAPED_BY),
        *(f"{file.st_size} {file.st_mtime_ns}" for file in own),
    ]
    return hashlib.sha256("\n".join(whole).encode()).hexdigest()[:32]
