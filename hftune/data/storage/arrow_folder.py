"""Folders of `Dataset.save_to_disk`, opened without trusting them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, disable_caching, load_from_disk

from hftune.digests import Damaged, read_text

STATE = "state.json"
"""The file by which such a folder is known."""

_INFO = "dataset_info.json"
# What `datasets` raises for a folder that somebody has changed: it trusts what it reads.
_WRONG = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, pa.ArrowException)


def open_folder(folder: Path, *, validate: bool = False) -> Dataset:
    """The data set of a folder, memory-mapped.

    Args:
        validate: Look at every offset, too. Arrow trusts its files: a wrong one would end the process, not raise.

    Raises:
        Damaged: It is not what `Dataset.save_to_disk` writes.
    """
    try:
        files = _data_files(folder)
        if validate:
            for file in files:
                _validate(file)
        # Else what is made of it later (`flatten_indices`, `add_column`) stays next to it for ever, as cache-*.arrow.
        disable_caching()
        dataset = load_from_disk(str(folder))
    except Damaged:
        raise
    except _WRONG as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
    # `load_from_disk` also opens dictionaries of splits.
    if not isinstance(dataset, Dataset):
        raise Damaged(f"it holds the splits {', '.join(dataset)}")
    return dataset


def _data_files(folder: Path) -> list[Path]:
    """The files that the folder's state lists, all of them in the folder."""
    if not (folder / STATE).exists():
        raise Damaged(f"it has no {STATE}")
    if (folder / _INFO).exists():
        read_text(folder / _INFO)  # `datasets` reads it whatever it is
    state: Any = json.loads(read_text(folder / STATE))
    names = [entry["filename"] for entry in state["_data_files"]]
    for name in names:
        # A name such as ../../x would have `datasets` open any file of this user.
        if Path(name).name != name:
            raise Damaged(f"{STATE} names the file {name!r}, which is not in the folder")
        # Opening a FIFO would wait for ever.
        if not (folder / name).is_file():
            raise Damaged(f"{name} is gone, or no file")
    return [folder / name for name in names]


def _validate(file: Path) -> None:
    with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as batches:
        for number, batch in enumerate(batches):
            try:
                batch.validate(full=True)
            except pa.ArrowInvalid as error:
                raise Damaged(f"{file.name}, batch {number}: {error}") from error


# --- token ids --------------------------------------------------------------------------------------------------------


def check_ids(dataset: Dataset, vocabulary: int) -> None:
    """Look whether the columns of token ids hold nothing else.

    Raises:
        Damaged: One is negative, or not in the vocabulary.
    """
    for name in [name for name in dataset.column_names if name.endswith("ids") and name != "position_ids"]:
        for chunk in dataset.data.column(name).chunks:
            if is_int_list(chunk.type):
                least, most = (pc.min_max(chunk.flatten())[key].as_py() for key in ("min", "max"))
                if least is not None and (least < 0 or most >= vocabulary):
                    found = least if least < 0 else most
                    raise Damaged(f"{name} holds the token id {found}, the vocabulary has {vocabulary}")


def is_int_list(kind: pa.DataType) -> bool:
    """Whether a column holds lists of integers."""
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return is_list and pa.types.is_integer(kind.value_type)
