"""JSON inside a string of a record: function calls, tools, and lists in the cells of a table."""

from __future__ import annotations

from typing import Any

from hftune.data.readers.strict_json import Malformed, loads
from hftune.errors import DataError

BAD_JSON = "malformed JSON in a string"


def from_json(value: Any, origin: str, where: str, *, fix: str) -> Any:
    """Decode a string of JSON, as strictly as a record; other values pass through.

    Raises:
        DataError: The string is not JSON, or would lose something.
    """
    if not isinstance(value, str):
        return value
    try:
        # A half of a surrogate pair must reach the check that names it; `encode` alone would raise.
        return loads(value.encode("utf-8", "surrogatepass"))
    except Malformed as error:
        cause = str(error).removeprefix("malformed JSON: ")
        raise DataError(f"{where} is not JSON: {cause}", place=origin, fix=error.fix or fix, kind=BAD_JSON) from error
