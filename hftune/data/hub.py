"""Data sets of the Hugging Face Hub by name: downloaded by `datasets`, then read from its Arrow files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import datasets
from datasets.exceptions import DatasetsError

from hftune.data.files import SUFFIXES, Chunk, chunks, find_files
from hftune.data.specs import HELD_OUT_FLAGS, held_out_splits, path_exists
from hftune.errors import DataError, shown
from hftune.logging import notice

# owner/name, at most one slash: a path that looks like this and exists is a path.
_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*(?:/[\w.-]+)?)(?::(?P<config>[^@:]+))?(?:@(?P<split>[^@:]+))?")
_FIX = (
    "Check the name (OWNER/NAME, OWNER/NAME:CONFIG, OWNER/NAME@SPLIT) and the connection; "
    "on a machine without one, download it elsewhere and give the folder."
)

HUB = "hf://"
"""What the address of a file there begins with."""


@dataclass(frozen=True, slots=True)
class HubName:
    """A data set of the Hub; `config` is also called subset there. Without a split the flag decides."""

    name: str
    config: str | None = None
    split: str | None = None


def parse_hub_name(text: str) -> HubName | None:
    """`owner/name`, `owner/name:config`, `owner/name@split` or all of them; None for what cannot be a name."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    return HubName(match["name"], match["config"], match["split"])


def data_files(path: str, flag: str, *, cache_dir: str | None = None) -> list[Path]:
    """The files of a source: those at a local path, or, where there is none, of the Hub data set of that name.

    Args:
        path: Without `#500`.
        flag: The flag that gave it; errors name it. A name without an owner is looked for under --dataset_name only.
        cache_dir: Where `datasets` keeps downloads; left out: its own place.

    Raises:
        DataError: Neither is there, or the Hub cannot be reached.
    """
    named = _asked_for(path, flag)
    return find_files(path, flag) if named is None else download(named, flag, cache_dir=cache_dir)


def stream_files(path: str, flag: str) -> list[str]:
    """The same for a stream: of a Hub data set where its files are (`hf://...`), of which none is downloaded yet.

    Raises:
        DataError: Neither is there, the Hub cannot be reached, or it has files of another kind.
    """
    named = _asked_for(path, flag)
    return [str(file) for file in find_files(path, flag)] if named is None else addresses(named, flag)


def stream_chunks(files: list[str]) -> Iterator[Chunk]:
    """The records of such files, each downloaded when it is reached, by one process of a machine."""
    for file in files:
        local = datasets.DownloadManager().download(file) if file.startswith(HUB) else file
        yield from chunks([Path(local)])


def addresses(named: HubName, flag: str) -> list[str]:
    """Where the files of one split of a data set are.

    Raises:
        DataError: No such data set, configuration or split, no connection, or files that are not read one by one.
    """
    split = named.split or "train"  # held-out records are not streamed
    try:
        found = datasets.load_dataset_builder(named.name, named.config).config.data_files or {}
    except (OSError, ValueError, DatasetsError) as error:
        raise _not_had(named, flag, error) from error
    files = [str(file) for file in found.get(split, [])]
    if not files:
        cause = f"{named.name} has no files of a split {split}; its splits: {', '.join(map(str, found)) or 'none'}"
        raise DataError(cause, place=flag, fix="Name another split, with @.", kind="data set not found")
    others = [file for file in files if not file.lower().endswith(SUFFIXES)]
    if others:
        cause = f"{named.name} has files that are not read one by one: {others[0]}"
        raise DataError(cause, place=f"--streaming, {flag}", fix="Leave --streaming out.", kind="data set not found")
    return files


def may_exist(path: str) -> bool:
    """Whether a source exists as a path, or has a name by which the Hub can be asked. Nothing is downloaded."""
    return path_exists(path) or _asked_for(path) is not None


def _asked_for(path: str, flag: str = "") -> HubName | None:
    """What the Hub is asked for a source; None where it is a path. One without an owner must be given as a name."""
    is_name = flag == "--dataset_name"
    # A folder here wins over a data set of the same name there: nothing is downloaded by surprise. A missing file is a
    # missing file: owner/name.jsonl is not asked for on the Hub.
    if (not is_name and path_exists(path)) or path.lower().endswith(SUFFIXES):
        return None
    named = parse_hub_name(path)
    return named if named is not None and (is_name or "/" in named.name) else None


def download(named: HubName, flag: str, *, cache_dir: str | None = None) -> list[Path]:
    """The Arrow files of one split of a data set, after downloading what is not in the cache.

    Raises:
        DataError: No such data set, configuration or split, or no connection.
    """
    try:
        split = named.split or (_held_out(named, flag) if flag in HELD_OUT_FLAGS else "train")
        # reuse_dataset_if_exists is the default: a second run reads the cache.
        found = datasets.load_dataset(named.name, named.config, split=split, cache_dir=cache_dir)
    except (OSError, ValueError, DatasetsError) as error:
        raise _not_had(named, flag, error) from error
    files = [Path(entry["filename"]) for entry in found.cache_files]
    if not files or found.num_rows == 0:
        cause = f"the split {split} of {named.name} holds no record"
        raise DataError(cause, place=flag, fix="Name another split, with @.", kind="file without a record")
    return files


def _held_out(named: HubName, flag: str) -> str:
    """The split that is read as held-out records where none was named: as of a folder, validation, else test."""
    names = datasets.get_dataset_split_names(named.name, named.config)
    chosen = next(iter(held_out_splits(names)), None)
    read = chosen or "train"
    why = "" if chosen else ", which is trained, too, if you train on this data set: it has no split for validation"
    notice(f"{named.name}: its split {read} is read for {flag}{why} ({named.name}@SPLIT reads another one)")
    return read


def _not_had(named: HubName, flag: str, error: Exception) -> DataError:
    words = shown(error, 300) or type(error).__name__
    return DataError(
        f"{named.name} is no file or folder here, and as a data set of the Hub it cannot be had: {words}",
        place=flag,
        fix=_FIX,
        kind="data set not found",
    )
