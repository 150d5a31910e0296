"""Rewards kept by content in a folder: a run that asks again is answered from it, as is a run that is replayed."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hftune.digests import digest
from hftune.distributed import ranks
from hftune.errors import ManifestError
from hftune.opening.files import open_regular
from hftune.opening.own_file import open_own

Reward = float | None
"""None: the function has no opinion."""

_WIDTH, _LINE = 32, 512
"""Letters of a key; bytes of a line at most."""
_WHOLE = re.compile(rb"([0-9a-f]{32})\t(nan|-?\d+(?:\.\d+)?(?:e[-+]\d+)?)\t[^\n]*\n")


class KeptRewards:
    """Rewards of all runs that were given this folder: a line each, by a file for each process.

    Args:
        folder: It is made where it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"rewards-{ranks.rank()}.tsv"
        self._known: dict[str, Reward] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(folder.glob("rewards-*.tsv")):
            self._known.update(_read(file))

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> Reward:
        return self._known[key]

    def add(self, rewards: Mapping[str, Reward], name: str) -> None:
        """Keep rewards by their keys; they are in the file when this returns.

        Args:
            name: Of the function, for those who read the file.
        """
        self._known.update(rewards)
        # "nan" for no opinion: a number in every line. `repr` gives the same number again.
        lines = [f"{key}\t{math.nan if value is None else value!r}\t{name}\n" for key, value in rewards.items()]
        with open_own(self._file) as stream:
            # What a killed process left of a line is closed, and skipped by whoever reads.
            stream.write(("\n" + "".join(lines)).encode("utf-8", "replace"))


def key_of(function: str, prompt: Any, completion: Any, row: Mapping[str, Any]) -> str:
    """What a reward depends on, in 32 letters.

    Args:
        function: Its name and the digest of its code.
        row: The record's other columns.
    """
    text = json.dumps([function, prompt, completion, dict(row)], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_WIDTH // 2).hexdigest()


def code_of(function: Callable[..., Any]) -> str:
    """Name and the digest of the file that a function was written in: another text gives other rewards."""
    name = getattr(function, "__name__", type(function).__name__)
    code = function if inspect.isroutine(function) else type(function)
    try:
        file = inspect.getsourcefile(code)
    except TypeError:  # made without a file, as in a console
        file = None
    return f"{name} {digest(Path(file)) if file and Path(file).is_file() else ''}"


def rows_of(columns: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Columns of a batch, a dict for each answer; what is no list of as many values belongs to no answer."""
    lists = {name: values for name, values in columns.items() if isinstance(values, list) and len(values) == count}
    return [{name: values[row] for name, values in lists.items()} for row in range(count)]


def _read(file: Path) -> Iterator[tuple[str, Reward]]:
    """Keys and rewards; parts of lines are passed over.

    Raises:
        ManifestError: It begins with something else.
    """
    with open_regular(file) as stream:
        for number, line in enumerate(iter(lambda: stream.readline(_LINE), b"")):
            if found := _WHOLE.fullmatch(line):
                value = float(found[2])
                yield found[1].decode("ascii"), None if math.isnan(value) else value
            elif number == 0 and line.strip():
                fix = "give another folder, or remove this file: rewards are then asked for again"
                raise ManifestError(f"{file} holds no rewards", place=str(file), fix=fix)
