"""Arguments that name models and data: URLs of stores, names on ModelScope and of registries become local paths.

Done once, right after a command line is read: what comes after it (checks, fingerprints, caches, bounded readers)
knows local files only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from hftune.errors import ArgumentError, did_you_mean
from hftune.logging import notice
from hftune.path_hints import looks_local
from hftune.secrets import redact
from hftune.stores import modelscope, objects
from hftune.stores.registry import FILE, FLAG, registered

HUBS = ("huggingface", "modelscope")
HUB_VARIABLE = "HFTUNE_HUB"

MODELS = {
    *("model_name_or_path", "tokenizer_name_or_path", "base_model_name_or_path", "tokenizer_path", "model", "models"),
    *("teacher_model_name_or_path", "ref_model", "reward_model", "reward_model_path", "domain_tokenizer"),
    *("peft_path", "peft_model_path", "ref_adapters", "adapter", "warm_start"),
}
DATA = {
    *("train_file_dir", "validation_file_dir", "question_file", "input", "tokenized_dir", "validation_tokenized_dir"),
}
FILES = {"chat_template", "tools"}
"""Arguments of scripts and commands whose values are looked up; in `FILES` URLs alone are."""

_URL = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z0-9]+://[^\s,#=\"']+)")
_PARTS = re.compile(r"([,\s]+)")
# OWNER/NAME, and before a # how many records of it.
_NAMED = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WITH_REVISION = {"model_name_or_path", "tokenizer_name_or_path"}
_OTHER_FORMATS = (".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".ot")
_MODEL_FOLDERS = {"additional_chat_templates"}

E = TypeVar("E", bound=Any)

origins: dict[str, str] = {}
"""Local paths that arguments were given in this process, and what they stand for; manifests name both."""


def chosen_hub(given: str | None) -> str:
    """The hub that names are looked up on: `--hub`, else the variable HFTUNE_HUB, else Hugging Face's.

    Raises:
        ArgumentError: The variable names none.
    """
    hub = given or os.environ.get(HUB_VARIABLE) or HUBS[0]
    if hub not in HUBS:
        fix = f"{did_you_mean(hub, HUBS)} one of {', '.join(HUBS)}".strip()
        raise ArgumentError(f"{hub} is no hub that is known", place="--hub" if given else HUB_VARIABLE, fix=fix)
    return hub


def located(entries: list[E]) -> list[E]:
    """Arguments (`Entry`) with local paths in place of URLs and of names that are looked up elsewhere.

    Raises:
        ArgumentError: Something cannot be had.
    """
    given = {entry.name: entry.values for entry in entries}
    if given.get("output_dir") and objects.is_url(str(given["output_dir"][0])):
        fix = "name a folder here; what is finished there goes to a store with `hftune export hub --hub_model_id URL`"
        raise ArgumentError("results are written to a disk", place="--output_dir", fix=fix)
    hub = chosen_hub(str(given["hub"][0]) if given.get("hub") else None)
    entries = _from_registry(entries, given, hub)
    offline = [str(value).lower() for value in given.get("offline", ["false"])] in ([], ["true"])
    revision = str(given["model_revision"][0]) if given.get("model_revision") else None
    download = partial(_from_modelscope, revision=revision, offline=offline) if hub == "modelscope" else None
    return [replace(entry, values=[_found(entry.name, value, download) for value in entry.values]) for entry in entries]


# --- one value -------------------------------------------------------------------------------------------------------


def _found(name: str, value: Any, download: Callable[[str, str], str] | None) -> Any:
    """What the value of an argument becomes; `download` finds names, of an argument, that are not looked up later."""
    if isinstance(value, list):  # of a YAML file
        return [_found(name, part, download) for part in value]
    if name not in MODELS | DATA | FILES or not isinstance(value, str) or value.lstrip().startswith(("{", "[")):
        return value
    chosen = files_of_model if name in MODELS else _all
    text = _URL.sub(lambda match: _copy_of(match[1], f"--{name}", chosen), value)
    return text if download is None or name in FILES else _in_each(text, partial(download, name))


def _from_modelscope(name: str, part: str, revision: str | None, offline: bool) -> str:
    """The folder of a name on ModelScope that stands in an argument; other texts stay."""
    flag, kind = f"--{name}", "dataset" if name in DATA else "model"
    # A folder here wins over a name there, as it does for the Hub.
    if os.path.exists(os.path.expanduser(part)) or looks_local(part):
        return part
    if not _NAMED.fullmatch(part):
        if kind == "dataset" and _NAMED.match(part) and re.search("[:@]", part):
            fix = "name the data set alone, or download it and name the file"
            cause = f"ModelScope's data sets are read whole, without :CONFIG or @SPLIT: {part}"
            raise ArgumentError(cause, place=flag, fix=fix)
        return part
    # The revision is of the model and its tokenizer.
    return _noted(modelscope.download(part, kind, flag, revision if name in _WITH_REVISION else None, offline), part)


def _copy_of(text: str, flag: str, chosen: Callable[[list[str]], list[str]]) -> str:
    if text.lower().startswith(("http://", "https://")):
        cause = f"{redact(text)} is a page of the web, not a file, a name on a hub or in a store"
        raise ArgumentError(cause, place=flag, fix=f"download it (curl -LO {redact(text)}), and give the file")
    # Of another kind of URL the readers say that there is no such path.
    return _noted(objects.fetch(text, flag, chosen), text) if objects.is_url(text) else text


def _noted(path: Path, given: str) -> str:
    origins[str(path)] = redact(given)
    return str(path)


def _in_each(text: str, change: Callable[[str], str]) -> str:
    """Change each name between commas and blanks; a number behind a # stays."""
    if os.path.exists(os.path.expanduser(text)):
        return text
    parts = _PARTS.split(text)
    for at in range(0, len(parts), 2):
        path, mark, number = parts[at].partition("#")
        parts[at] = f"{change(path)}{mark}{number}" if path else parts[at]
    return "".join(parts)


def files_of_model(names: list[str]) -> list[str]:
    """Of the files of a folder those of a model: no checkpoints below it, no weights in a second format."""
    own = [name for name in names if "/" not in name or name.split("/")[0] in _MODEL_FOLDERS]
    if any(name.endswith(".safetensors") for name in own):
        own = [name for name in own if PurePosixPath(name).suffix not in _OTHER_FORMATS]
    return own


def _all(names: list[str]) -> list[str]:
    return names


# --- a registry ------------------------------------------------------------------------------------------------------


def _from_registry(entries: list[E], given: dict[str, list[Any]], hub: str) -> list[E]:
    """Names of `--dataset_dir`'s registry replaced by what they stand for, and `--columns` of their own names added."""
    # LLaMA-Factory's own default: its commands name data sets of `data/dataset_info.json` without a folder.
    default = "data" if os.path.isfile(f"data/{FILE}") else None
    folder = (given.get("dataset_dir") or [default])[0]
    if folder is None:
        return entries
    folder, columns = str(folder), []
    if folder.startswith("REMOTE:") or objects.is_url(folder):
        fix = "download it, and give the folder (`hf download OWNER/NAME --repo-type dataset --local-dir FOLDER`)"
        raise ArgumentError("a registry is read from a folder here", place=FLAG, fix=fix)

    def source(name: str) -> str:
        found = None if os.path.exists(os.path.expanduser(name)) else registered(folder, name, hub)
        if found is None:
            return name
        columns.append(found.columns)
        if not given.get("dataset_dir"):
            notice(f"{name}: {found.source}, as {folder}/{FILE} says")
        return found.source

    entries = [
        replace(entry, values=[_in_each(str(value), source) for value in _flat(entry.values)])
        if entry.name in ("train_file_dir", "validation_file_dir")
        else entry
        for entry in entries
    ]
    return entries if given.get("columns") else [*entries, *_with_columns(entries, columns)]


def _with_columns(entries: list[E], columns: list[dict[str, str]]) -> list[E]:
    """The argument `columns` for data sets that agree on it; none where all have usual names."""
    if any(other != columns[0] for other in columns):
        raise ArgumentError(
            "data sets with different names of columns cannot be read together",
            place=FLAG,
            fix="train on one of them, or rename the columns of the others in their files",
        )
    if not columns or not columns[0]:
        return []
    return [replace(entries[0], name="columns", values=[json.dumps(columns[0], ensure_ascii=False)])]


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        yield from value if isinstance(value, list) else [value]
