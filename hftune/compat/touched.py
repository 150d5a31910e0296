"""What an entry says of a private or replaced part of another library. The lists are in the modules alongside."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UpstreamSymbol:
    """One symbol of another library that hftune replaces, overrides, reads or imports though it is not documented.

    Attributes:
        symbol: Dotted path from the library's name: `transformers.trainer.Trainer._save`. The last name may be an
            attribute that only the library's code sets; the path then ends with the class or module that sets it.
        parameters: Names of a function's parameters in order, without `self` or `cls`, and with their stars: all of
            them, or with "..." last those that hftune names in a call. None: the signature does not matter, or it is
            no function.
        versions: Versions of the library in which the symbol has this form, as in `pip install` (">=5.17").
        why: What hftune does with it, and why nothing documented does.
        feature: What of hftune breaks when the symbol changes, as a user would call it.
        link: The library's source or issue.
    """

    symbol: str
    parameters: tuple[str, ...] | None
    versions: str
    why: str
    feature: str
    link: str = ""

    @property
    def library(self) -> str:
        """The package that is imported: `transformers`."""
        return self.symbol.partition(".")[0]

    @property
    def name(self) -> str:
        """The last name: `_save`."""
        return self.symbol.rpartition(".")[2]
