"""Files to rows, each of which knows the file and line it came from.

Nothing is guessed and nothing is skipped: a line that cannot be read stops the run with its place and the decoder's
own words. Blank lines are the one thing passed over.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from hftune.errors import DataError

SUFFIXES = (".txt", ".jsonl", ".json", ".jsonl.gz")
"""What a data file's name may end with."""

_BOM = b"\xef\xbb\xbf"
_FIX_LINE = "Mend or remove this line; every line must hold one JSON object."


@dataclass(frozen=True, slots=True)
class Row:
    """One record: its columns, and the file and line (1-based) where it starts."""

    value: dict[str, Any]
    file: str
    line: int

    @property
    def origin(self) -> str:
        """`file:line`, as errors show it."""
        return f"{self.file}:{self.line}"


def find_files(path: str, flag: str) -> list[Path]:
    """The data files at `path` (a file, or a folder searched recursively), sorted by name.

    Hidden files and folders (a name that starts with a dot) are left out.

    Args:
        path: File or folder; `~` is expanded.
        flag: The flag that gave the path, such as `--train_file_dir`; errors name it.

    Raises:
        DataError: Nothing there, no file with a known suffix, or an empty file.
    """
    root = Path(path).expanduser()
    accepted = ", ".join(SUFFIXES)
    if not root.exists():
        raise DataError(f"{path} does not exist", place=flag, fix=f"Give a folder or a file ({accepted}).")
    seen = [root] if root.is_file() else _visible_files(root)
    files = [file for file in seen if file.name.lower().endswith(SUFFIXES)]
    if not files:
        found = ", ".join(file.name for file in seen[:8]) + (", ..." if len(seen) > 8 else "") if seen else "nothing"
        raise DataError(
            f"no data file in {path}: found {found}", place=flag, fix=f"Files must be named with one of {accepted}."
        )
    for file in files:
        if file.stat().st_size == 0:
            raise DataError(f"{file} is empty (0 bytes)", place=flag, fix="Remove it or fill it.")
    return files


def _visible_files(root: Path) -> list[Path]:
    """All files below `root` without a dot at the start of any name on the way, in one fixed order."""
    found = (file for file in root.rglob("*") if file.is_file())
    visible = [file for file in found if not any(part.startswith(".") for part in file.relative_to(root).parts)]
    return sorted(visible, key=lambda file: file.relative_to(root).as_posix())


def read_rows(files: list[Path], *, max_samples: int | None = None) -> list[Row]:
    """Read the rows of all files in order, at most `max_samples` over all of them.

    A file past the limit is not opened.

    Raises:
        DataError: With `file:line`, for anything that is not UTF-8 text or JSON objects, or a file without a record.
    """
    rows: list[Row] = []
    for file in files:
        left = None if max_samples is None else max_samples - len(rows)
        if left is not None and left <= 0:
            break
        found = list(islice(_rows_of(file), left))
        if not found:
            raise DataError("the file holds no record", place=str(file), fix="Remove it or fill it.")
        rows.extend(found)
    return rows


def _rows_of(file: Path) -> Iterator[Row]:
    """The rows of one file by its suffix."""
    name = file.name.lower()
    try:
        if name.endswith(".txt"):
            yield from _text_rows(file)
        elif name.endswith(".json"):
            yield from _json_rows(file)
        else:
            yield from _jsonl_rows(file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"damaged gzip file: {error}", place=str(file), fix="Compress or copy the file again."
        ) from error
    except OSError as error:
        raise DataError(f"cannot read the file: {error.strerror or error}", place=str(file)) from error


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """(line number, text without its line end) of each line; a line at a time, so that big files stay on disk."""
    # Binary lines end at \n only. str.splitlines would also cut at U+2028 and others, which occur inside JSON strings.
    with gzip.open(file, "rb") if file.name.lower().endswith(".gz") else open(file, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            raw = line.removeprefix(_BOM) if number == 1 else line
            yield number, _decode(raw, file, number).rstrip("\r\n")


def _decode(raw: bytes, file: Path, first_line: int) -> str:
    """UTF-8 bytes to text; `first_line` is the line number of the first byte."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + raw.count(b"\n", 0, error.start)
        raise DataError(
            f"not UTF-8: {error.reason}, byte 0x{raw[error.start]:02x}",
            place=f"{file}:{line}",
            fix="Save the file as UTF-8, for example with `iconv -f GB18030 -t UTF-8` or `iconv -f UTF-16 -t UTF-8`.",
        ) from error
    if "\x00" in text:
        line = first_line + text.count("\n", 0, text.index("\x00"))
        raise DataError(
            "a NUL byte in the text",
            place=f"{file}:{line}",
            fix="The file is damaged or not UTF-8 text; copy it again.",
        )
    return text


def _text_rows(file: Path) -> Iterator[Row]:
    """A row {"text": line} for each line that is not blank."""
    for number, text in _lines(file):
        if text.strip():
            yield Row({"text": text}, str(file), number)


def _jsonl_rows(file: Path) -> Iterator[Row]:
    """A row for each line that is not blank."""
    for number, text in _lines(file):
        if not text.strip():
            continue
        place = f"{file}:{number}"
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            hint = " If the file is one JSON array, name it .json." if text.lstrip().startswith("[") else ""
            raise DataError(f"malformed JSON: {error}", place=place, fix=_FIX_LINE + hint) from error
        yield _row(value, text, file, number)


def _json_rows(file: Path) -> Iterator[Row]:
    """The objects of one JSON array, or objects that follow each other (JSON lines in disguise, or a single one)."""
    text = _decode(file.read_bytes().removeprefix(_BOM), file, 1)
    decoder = json.JSONDecoder()
    position, line, counted = _skip_blanks(text, 0), 1, 0
    in_array = text[position : position + 1] == "["
    if in_array:
        position = _skip_blanks(text, position + 1)
    first = True
    while position < len(text) and not (in_array and text[position] == "]"):
        if in_array and not first:
            position = _after_comma(text, position, file)
        line += text.count("\n", counted, position)
        counted = position
        value, end = _decode_one(decoder, text, position, file)
        yield _row(value, text[position:end], file, line)
        position, first = _skip_blanks(text, end), False
    if in_array:
        _check_array_end(text, position, file)


def _decode_one(decoder: json.JSONDecoder, text: str, position: int, file: Path) -> tuple[Any, int]:
    """The JSON value that starts at `position`, and where it ends."""
    try:
        return decoder.raw_decode(text, position)
    except json.JSONDecodeError as error:
        # The decoder's own words already hold line and column.
        raise _malformed(text, error.pos, file, str(error)) from error
    except (ValueError, RecursionError) as error:
        raise _malformed(text, position, file, str(error)) from error


def _skip_blanks(text: str, position: int) -> int:
    """The next position that is not JSON white space."""
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _after_comma(text: str, position: int, file: Path) -> int:
    """Step over the comma between two records of an array."""
    if text[position] != ",":
        raise _malformed(text, position, file, f"expected ',' or ']' after a record, found {text[position]!r}")
    after = _skip_blanks(text, position + 1)
    if after >= len(text) or text[after] == "]":
        raise _malformed(text, position, file, "a comma with no record after it")
    return after


def _check_array_end(text: str, position: int, file: Path) -> None:
    """The array must be closed, with nothing after it."""
    if position >= len(text):
        raise _malformed(text, len(text), file, "the file ends inside the array (no closing ']')")
    after = _skip_blanks(text, position + 1)
    if after < len(text):
        raise _malformed(text, after, file, "extra data after the closing ']'")


def _malformed(text: str, position: int, file: Path, cause: str) -> DataError:
    line = text.count("\n", 0, position) + 1
    return DataError(
        f"malformed JSON: {cause}",
        place=f"{file}:{line}",
        fix="Mend the file; a .json file holds one array of objects (or one object a line).",
    )


def _row(value: Any, source: str, file: Path, line: int) -> Row:
    """Check that a record is an object of valid text."""
    place = f"{file}:{line}"
    if not isinstance(value, dict):
        raise DataError(
            f"a record must be a JSON object, found {type(value).__name__}: {source.strip()[:60]}",
            place=place,
            fix='Write it as {"key": ...}. A .jsonl file holds an object a line, a .json file an array of objects.',
        )
    # "\ud83d" alone is legal JSON but no text; tokenizers and Arrow fail on it much later and without a place.
    if "\\ud" in source or "\\uD" in source:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise DataError(
                f"half of a surrogate pair ({error.reason})",
                place=place,
                fix="Mend the broken \\ud... escape, usually an emoji cut in two.",
            ) from error
    return Row(value, str(file), line)
