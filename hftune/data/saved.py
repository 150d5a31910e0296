"""Tokenised records in a folder of their own, made ahead of a run on a machine without a GPU.

The folder holds `tokenized.json` and one data set for each split. What decided the token ids (tokenizer, template,
lengths, what is masked) is written down, and a run that would have decided otherwise refuses the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xxhash
from datasets import load_from_disk

from hftune.data.cache import tokenizer_state
from hftune.data.encoder import Encoder
from hftune.data.encoding import Counts
from hftune.data.parts import Part
from hftune.errors import ArgumentError, DataError

INDEX = "tokenized.json"
"""Written last: a folder without it is not finished."""

_FIX = "Give the run the arguments that the records were tokenised with, or tokenise them again."


def save_tokenised(folder: Path, parts: dict[str, Part], encoders: dict[str, Encoder]) -> None:
    """Write all splits and the index.

    Raises:
        ArgumentError: The folder holds something already, or cannot be written.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ArgumentError(f"{folder} is not empty", place="--output_dir", fix="choose another folder")
    about = {
        "tokenizer": _tokenizer_key(encoders["train"]),
        "splits": {
            name: {
                "settings": encoders[name].settings(),
                "counts": part.counts.to_dict(),
                "files": part.files,
                "key": part.key,
            }
            for name, part in parts.items()
        },
    }
    try:
        for name, part in parts.items():
            part.dataset.save_to_disk(str(folder / name))
        partial = folder / f".{INDEX}"
        partial.write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(partial, folder / INDEX)
    except OSError as error:
        raise ArgumentError(
            f"cannot write {folder}: {error}", place="--output_dir", fix="give another folder"
        ) from error


def load_tokenised(folder: Path, encoders: dict[str, Encoder]) -> dict[str, Part]:
    """The splits of a folder that `save_tokenised` wrote, memory-mapped.

    Raises:
        DataError: No such folder, or one that was made by other settings or another tokenizer.
    """
    index = folder / INDEX
    if not index.is_file():
        raise DataError(
            f"{folder} holds no tokenised records (no {INDEX})",
            place="--tokenized_dir",
            fix="Make it with: hftune tokenize run_sft ... --output_dir FOLDER",
        )
    about = json.loads(index.read_text(encoding="utf-8"))
    parts = {}
    for name, split in about["splits"].items():
        _check(about, name, encoders[name], folder)
        dataset = load_from_disk(str(folder / name))
        parts[name] = Part(dataset, Counts(**split["counts"]), split["files"], split["key"])
    return parts


def check_index(folders: Sequence[str], encoder: Encoder) -> None:
    """Refuse folders of `hftune tokenize` that this run would have tokenised differently; others cannot be checked.

    Raises:
        DataError: Naming the folder and what differs.
    """
    for folder in map(Path, folders):
        if (folder / INDEX).is_file():
            _check(json.loads((folder / INDEX).read_text(encoding="utf-8")), "train", encoder, folder)


def held_out_beside(folders: Sequence[str]) -> str | None:
    """The folders of `hftune tokenize` among some that hold a split "eval", with commas between them."""
    found = [folder for folder in folders if (Path(folder) / INDEX).is_file() and (Path(folder) / "eval").is_dir()]
    return ",".join(found) or None


def _check(about: dict[str, Any], split: str, encoder: Encoder, folder: Path) -> None:
    """Refuse records that this run would have tokenised differently."""
    wanted, found = encoder.settings(), about["splits"][split]["settings"]
    names = [name for name in wanted if found.get(name) != wanted[name]]
    if names:
        differences = ", ".join(f"{name} {found.get(name)} (this run: {wanted[name]})" for name in names)
        raise DataError(f"the records in {folder} were tokenised with {differences}", place="--tokenized_dir", fix=_FIX)
    if about["tokenizer"] != _tokenizer_key(encoder):
        raise DataError(
            f"the records in {folder} were tokenised with another tokenizer or chat template",
            place="--tokenized_dir",
            fix=_FIX,
        )


def _tokenizer_key(encoder: Encoder) -> str:
    state = json.dumps(tokenizer_state(encoder.tokenizer), sort_keys=True, default=str)
    return xxhash.xxh3_128(state.encode()).hexdigest()
