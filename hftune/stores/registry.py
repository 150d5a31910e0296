"""LLaMA-Factory's registry of data sets: names of `dataset_info.json` become files, names on a hub, and columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hftune.errors import ArgumentError, ManifestError, shown
from hftune.opening.json_file import read_json

FILE = "dataset_info.json"
FLAG = "--dataset_dir"
_LIMIT = 1 << 24
_HUBS = ("hf_hub_url", "ms_hub_url")
# LLaMA-Factory's names for columns, and under which of hftune's names the same is read.
_COLUMNS = {
    "alpaca": {"prompt": "instruction", "query": "input", "response": "output", "system": "system"},
    "sharegpt": {"messages": "conversations", "system": "system", "tools": "tools"},
}
_PAIRS = {"chosen": "chosen", "rejected": "rejected", "kto_tag": "kto_tag"}
_MEDIA = ("images", "videos", "audios")


@dataclass(frozen=True)
class Registered:
    """A data set of the registry: what `--train_file_dir` takes for it, and columns that have other names."""

    source: str
    columns: dict[str, str] = field(default_factory=dict)


def registered(folder: str, name: str, hub: str) -> Registered | None:
    """What a name of a folder's registry stands for; None for one that it does not hold.

    Args:
        hub: huggingface or modelscope: which of its names an entry is taken under.

    Raises:
        ArgumentError: There is no registry, or the entry asks for what cannot be read.
    """
    entries = _entries(folder)
    if name not in entries:
        return None
    entry, place = entries[name], f"{Path(folder) / FILE}: {name}"
    if not isinstance(entry, dict):
        raise ArgumentError("the entry is no object", place=place, fix='write {"file_name": ...}')
    columns = entry.get("columns") or {}
    if not isinstance(columns, dict):
        raise ArgumentError("its columns are no object", place=place, fix='write {"prompt": "..."}')
    if media := [key for key in _MEDIA if columns.get(key)]:
        raise ArgumentError(f"it has {', '.join(media)}; hftune trains on text", place=place, fix="leave it out")
    _check_texts(entry, columns, place)
    source = _source(entry, folder, hub, place)
    return Registered(_counted(source, entry, place), _renamed(entry, columns, place))


def _entries(folder: str) -> dict[str, Any]:
    file = Path(folder).expanduser() / FILE
    if not file.is_file():
        fix = f"give the folder that holds {FILE}; or leave {FLAG} out, and name files and folders of records"
        raise ArgumentError(f"there is no {FILE} in {folder}", place=FLAG, fix=fix)
    try:
        return read_json(file, limit=_LIMIT)
    except ManifestError as error:
        raise ArgumentError(error.cause, place=error.place, fix=error.fix) from error


def _source(entry: Mapping[str, Any], folder: str, hub: str, place: str) -> str:
    """A path or a name on the hub."""
    other = {"huggingface": "ms_hub_url", "modelscope": "hf_hub_url"}[hub]
    own = {"huggingface": "hf_hub_url", "modelscope": "ms_hub_url"}[hub]
    if file := entry.get("file_name"):
        found = file if "://" in file else str(Path(folder).expanduser() / file)
    elif name := entry.get(own):
        marks = {":": entry.get("subset"), "@": entry.get("split")}
        found = name + "".join(f"{mark}{part}" for mark, part in marks.items() if part)
    elif entry.get(other):
        fix = f"--hub {'modelscope' if hub == 'huggingface' else 'huggingface'}; or download it, and name its folder"
        raise ArgumentError(f"it is known under {other} only", place=place, fix=fix)
    else:
        kinds = next((key for key in ("script_url", "cloud_file_name") if entry.get(key)), "nothing that is read")
        fix = "give it a file_name; a script is run by hand, and its files are named"
        raise ArgumentError(f"its records come from {kinds}", place=place, fix=fix)
    return found


def _counted(source: str, entry: Mapping[str, Any], place: str) -> str:
    """A source with how many of its records are taken."""
    count = entry.get("num_samples")
    if count is None:
        return source
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ArgumentError(f"its num_samples is {shown(count, 40)}", place=place, fix="write a number of records")
    return f"{source}#{count}"


def _check_texts(entry: Mapping[str, Any], columns: Mapping[str, Any], place: str) -> None:
    """Refuse values of other kinds."""
    fields = {key: entry.get(key) for key in ("file_name", *_HUBS, "subset", "split", "formatting")}
    for key, value in [*fields.items(), *columns.items()]:
        if value and not isinstance(value, str):
            raise ArgumentError(f"its {shown(key, 40)} is no text: {shown(value, 60)}", place=place, fix="write a text")


def _renamed(entry: Mapping[str, Any], columns: Mapping[str, Any], place: str) -> dict[str, str]:
    """Columns that are not called what they are recognised by: hftune's name to the data's."""
    formatting = str(entry.get("formatting") or "alpaca")
    if formatting not in _COLUMNS:
        fix = f"one of {', '.join(_COLUMNS)}"
        raise ArgumentError(f"its formatting is {formatting}", place=place, fix=fix)
    names = _COLUMNS[formatting] | _PAIRS
    if unknown := sorted(key for key in columns if key not in names and key not in (*_MEDIA, "history")):
        fix = f"leave them out; known are {', '.join(names)}"
        raise ArgumentError(f"unknown columns: {', '.join(unknown)}", place=place, fix=fix)
    found = {names[key]: str(given) for key, given in columns.items() if key in names and given}
    # Of these the text of pre-training is one, and turns are recognised in either spelling.
    return {ours: theirs for ours, theirs in found.items() if theirs not in (ours, "text", "messages", "conversations")}
