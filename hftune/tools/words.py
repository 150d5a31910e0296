"""The words of a subcommand with few flags, read without the parsers of the scripts, which bring torch along."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

from hftune.errors import ArgumentError
from hftune.secrets import command_without_secrets


class Words(argparse.ArgumentParser):
    """argparse that raises what is wrong.

    Args:
        command: What the user typed, `hftune watch`.
    """

    def __init__(self, command: str) -> None:
        # No abbreviations: `--for` must not force anything to run again.
        super().__init__(command, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Overrides `ArgumentParser.error`, which prints and ends the process.

        Raises:
            ArgumentError: In its place.
        """
        # Words that it cannot place are quoted: of a flag that names a secret, its name alone.
        told = " ".join(command_without_secrets(message.split()))
        raise ArgumentError(f"`{self.prog}`: {told}", fix=f"{self.prog} --help")


def number(kind: type[int] | type[float], low: float, high: float) -> Callable[[str], float]:
    """The type of a flag that takes a number from `low` to `high`."""

    def read(text: str) -> float:
        try:
            if low <= (value := kind(text)) <= high:
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"a number from {low} to {high}, not {text[:20]!r}")

    return read
