"""The private and replaced parts of other libraries that hftune uses: the table `symbols.csv`, a row a symbol.

| column     | holds                                                                                                |
| ---------- | ---------------------------------------------------------------------------------------------------- |
| use        | imported (from a module that the library does not document), read (a private attribute, also called  |
|            | or set), overridden (in a class that extends it), replaced (for the process, or in a block),         |
|            | replaced on an object (its class stays as it is), set (what a constructor left out would have set)   |
| symbol     | dotted path; the last name may be an attribute that only the code of the class or module sets        |
| parameters | names in order with their stars, without `self`: all, or with "..." last those that hftune's call    |
|            | names; empty: no function, or the signature does not matter                                          |
| versions   | of the library, in which the symbol has this form, as in `pip install`; empty for Python itself      |
| source     | file or folder in the library's repository                                                           |
| why        | what hftune does with it, and why nothing documented does                                            |
| feature    | what of hftune breaks when the symbol changes, as a user would call it                               |

An import that fails says so by itself; its row says which feature needs it before a run does.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class UpstreamSymbol:
    """A row of the table; `parameters` are None where the signature does not matter."""

    symbol: str
    parameters: tuple[str, ...] | None
    versions: str
    why: str
    feature: str
    source: str = ""
    use: str = ""

    @property
    def library(self) -> str:
        """The package that is imported: `transformers`."""
        return self.symbol.partition(".")[0]

    @property
    def name(self) -> str:
        """The last name: `_save`."""
        return self.symbol.rpartition(".")[2]


@cache
def listed() -> tuple[UpstreamSymbol, ...]:
    """All rows, in the order of the file."""
    lines = files(__package__).joinpath("symbols.csv").read_text(encoding="utf-8").splitlines()
    # `strict`: a quote that is not closed would otherwise swallow the rows behind it.
    rows = csv.DictReader(lines, strict=True)
    return tuple(UpstreamSymbol(parameters=_parameters(row.pop("parameters")), **row) for row in rows)


def _parameters(text: str) -> tuple[str, ...] | None:
    """`(model, ...)` as names."""
    return tuple(text[1:-1].split(", ") if text[1:-1] else ()) if text else None


@cache
def entry_of(symbol: str) -> UpstreamSymbol:
    """The row of a symbol.

    Raises:
        KeyError: The table has none.
    """
    return {entry.symbol: entry for entry in listed()}[symbol]
