"""Tables that are data of the package: CSV files beside the modules that read them."""

from __future__ import annotations

import csv
import json
from importlib.resources import files
from typing import Any


def read_table(package: str, name: str) -> list[dict[str, str]]:
    """The rows of a CSV file by the names of its columns; lines that begin with # are comments.

    Args:
        package: As an import names it: hftune may be installed as a zip.
    """
    lines = files(package).joinpath(name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader((line for line in lines if not line.startswith("#")), strict=True))


def cell_value(text: str) -> Any:
    """What a cell says: numbers, switches, lists and null of JSON; else a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
