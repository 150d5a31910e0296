"""Parts of tokenised records as `hftune tokenize --shard` has written them; opened without trusting them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from hftune.data.storage.arrow_folder import check_ids, open_folder
from hftune.data.tokenizing.counts import Counts
from hftune.digests import Damaged, check_contents, read_text, unsealed
from hftune.errors import DataError, shown

INDEX = "part.json"
"""A folder without it is no part."""
RECORDS = "records"
"""Not directly in the part: a folder of Arrow files there would pass for a tokenised corpus (`--tokenized_dir`)."""
AGAIN = "make it again with the command of the others: hftune tokenize ... --shard K/N --output_dir PART"


@dataclass(frozen=True)
class Part:
    """A folder that `write_part` has filled."""

    folder: Path
    about: dict[str, Any]

    def places(self) -> dict[str, int]:
        """Key -> the place of its source."""
        return {source["key"]: at for at, source in enumerate(self.about["sources"])}

    def source(self, key: str) -> dict[str, Any]:
        """What is written down of the source with a key."""
        found: dict[str, Any] = self.about["sources"][self.places()[key]]
        return found

    def batches(self, key: str) -> Iterator[pa.RecordBatch]:
        """The records of the source with a key, memory-mapped."""
        (file,) = self.records(key).glob("*.arrow")
        with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as stream:
            yield from stream

    def records(self, key: str) -> Path:
        """The folder with the records of the source with a key."""
        return self.folder / RECORDS / str(self.places()[key])

    def check(self, key: str, schema: pa.Schema, vocabulary: int) -> None:
        """Look at all records of a source: a part may come from anywhere, and the cache is believed.

        Raises:
            DataError: They are no records of this source.
        """
        with damage_of(self.folder):
            found = open_folder(self.records(key), validate=True)
            if len([*self.records(key).glob("*.arrow")]) != 1 or not found.data.schema.equals(schema):
                raise Damaged("it has other columns than its settings say")
            check_ids(found, vocabulary)


def opened_part(folder: Path) -> Part:
    """A part, every byte of which is compared with what its index says.

    Raises:
        DataError: It is none, or damaged.
    """
    if not (folder / INDEX).is_file():
        cause = f"{folder} is no part of tokenised records (no {INDEX})"
        raise DataError(cause, place="--join", fix="name folders of `hftune tokenize ... --shard K/N`")
    with damage_of(folder):
        about: dict[str, Any] = unsealed(read_text(folder / INDEX))
        _check_form(about)
        for at, source in enumerate(about["sources"]):
            check_contents(folder / RECORDS / str(at), source["contents"])
    return Part(folder, about)


def _check_form(about: dict[str, Any]) -> None:
    """Look whether an index has the form in which `write_part` writes it.

    Raises:
        Damaged: A value is of another type, or out of its range.
    """
    number, of = about["part"], about["of"]
    if not (type(number) is type(of) is int and 1 <= number <= of):
        raise Damaged(f"part {shown(number)} of {shown(of)}")
    for source in [*about["sources"]]:
        texts = [source["key"], source["tokenizer"], *source["contents"], *{**source["settings"]}]
        if not all(isinstance(text, str) for text in texts):
            raise Damaged(f"{INDEX} holds other values than texts where names are needed")
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in source["contents"]):
            raise Damaged(f"{INDEX} names files that are not in the folder")
        counts = Counts(**source["counts"])
        Counts().add(counts)
        if any(type(value) is float or value < 0 for value in vars(counts).values() if isinstance(value, int | float)):
            raise Damaged(f"{INDEX} holds counts that are none")


@contextmanager
def damage_of(folder: Path) -> Iterator[None]:
    """Turn whatever reading a part ends in, where somebody has changed it, into one message.

    Raises:
        DataError: In its place.
    """
    try:
        yield
    except (Damaged, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        cause = f"the part {folder} is damaged: {shown(error, 200)}"
        raise DataError(cause, place="--join", fix=f"copy it again, or {AGAIN}", kind="damaged file") from error
