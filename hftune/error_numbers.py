"""Numbers of errors: one for each kind of cause in one place of the house, as in `hftune explain HF201`.

Nobody writes a number where an error is made. An error knows the module that makes it, and `error_numbers.toml` says
which number stands for which modules, what its errors mean, and the way out, in English and in Chinese. A number keeps
its meaning for good: one that is given up goes into the list `retired` of that file and is not given away again.
The file is read where a message is shown or explained, and nowhere else.
"""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import Any, NamedTuple

TABLE = "error_numbers.toml"
LANGUAGES = ("en", "zh")


class Text(NamedTuple):
    """What a number means, in one language."""

    title: str
    means: str
    do: str


class Family(NamedTuple):
    """Errors of one number.

    Args:
        number: `HF` and three digits; the hundreds tell the room.
        modules: The modules below `hftune` that make them; a package stands for all in it that are not named elsewhere.
        texts: By language.
    """

    number: str
    modules: tuple[str, ...]
    texts: dict[str, Text]


@functools.cache
def table() -> dict[str, Any]:
    """The file: `rooms`, `retired`, and an entry for each number."""
    # Programs that end well never need it.
    import tomllib

    return tomllib.loads(files("hftune").joinpath(TABLE).read_text(encoding="utf-8"))


@functools.cache
def families() -> dict[str, Family]:
    """Number -> family, in order."""
    rows = {number: row for number, row in table().items() if number.startswith("HF")}
    return {
        number: Family(number, tuple(row["modules"]), {name: Text(**row[name]) for name in LANGUAGES})
        for number, row in rows.items()
    }


@functools.cache
def numbers() -> dict[str, str]:
    """Module or package below `hftune` -> number."""
    return {name: family.number for family in families().values() for name in family.modules}


def number_of(module: str) -> str:
    """The number of errors that a module makes, by its full name; "" where it is none of hftune's, or has none."""
    try:
        known = numbers()
    except OSError:
        # A process that may open no more files still says what ended it.
        return ""
    name = module.removeprefix("hftune.") if module.startswith("hftune.") else ""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return known.get(name, "")
