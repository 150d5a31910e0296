"""Tokenised records in a folder of their own, made ahead of a run on a machine without a GPU.

The folder holds `tokenized.json` and one data set for each split. What decided the token ids (tokenizer, template,
lengths, what is masked) is written down, and a run that would have decided otherwise refuses the folder. So are digests
of all files, which are compared when the folder is opened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from hftune.data.counts import Counts
from hftune.data.encoder import Encoder
from hftune.data.sources import TokenizedSource
from hftune.data.storage import open_folder, tokenizer_key
from hftune.digests import Damaged, check_contents, contents, read_text, sealed, unsealed
from hftune.distributed import ranks
from hftune.errors import DataError
from hftune.logging import notice

INDEX = "tokenized.json"
"""A folder without it is none of `hftune tokenize`."""

_MAKE_AGAIN = "Copy the folder again, or make it again with: hftune tokenize run_sft ... --output_dir FOLDER"
_FIX = "Give the run the arguments that the records were tokenised with, or tokenise them again."


def save_tokenised(folder: Path, parts: dict[str, TokenizedSource], encoders: dict[str, Encoder]) -> None:
    """Write all splits and the index.

    Args:
        folder: An empty one, which the caller publishes.
        parts: The splits by name.
        encoders: What made them.
    """
    about: dict[str, Any] = {
        # A digest of all that decides ids: two tokenizers of one name may differ by a template or an added token.
        "tokenizer": tokenizer_key(encoders["train"].tokenizer),
        "splits": {
            name: {
                "settings": encoders[name].settings(),
                "counts": part.counts.to_dict(),
                "files": part.files,
                "key": part.key,
                "rows": len(part.dataset),
            }
            for name, part in parts.items()
        },
    }
    for name, part in parts.items():
        # A selection of records is written out: the folder must not need the cache that it was chosen from.
        part.dataset.save_to_disk(str(folder / name))
        about["splits"][name]["contents"] = contents(folder / name)
    (folder / INDEX).write_text(json.dumps(sealed(about), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def load_tokenised(folder: Path, encoders: dict[str, Encoder]) -> dict[str, TokenizedSource]:
    """The splits of a folder that `save_tokenised` wrote, memory-mapped.

    Raises:
        DataError: No such folder, or one that was made by other settings or another tokenizer.
    """
    if not (folder / INDEX).is_file():
        raise DataError(
            f"{folder} holds no tokenised records (no {INDEX})",
            place="--tokenized_dir",
            fix="Make it with: hftune tokenize run_sft ... --output_dir FOLDER",
        )
    about = _index(folder)
    parts = {}
    for name, split in about["splits"].items():
        _check(about, name, encoders[name], folder)
        dataset = open_split(folder / name)
        parts[name] = TokenizedSource(dataset, Counts(**split["counts"]), split["files"], split["key"])
    return parts


def open_split(folder: Path) -> Dataset:
    """A tokenised folder, compared with what the index in the folder above it says of it.

    Every byte is read by the first process of a machine; of folders of others, which have no index, all of Arrow's
    offsets are looked at instead.

    Raises:
        DataError: The folder is damaged, or no tokenised folder.
    """
    try:
        if not (folder.parent / INDEX).is_file():
            notice(f"{folder} has no digests to compare it with: only its form is checked")
            return open_folder(folder, validate=True)
        split = _index(folder.parent)["splits"][folder.name]
        # Each byte is read by one process of a machine; the others compare sizes.
        check_contents(folder, split["contents"], whole=ranks.local_rank() == 0)
        dataset = open_folder(folder)
        if len(dataset) != split["rows"]:
            raise Damaged(f"it holds {len(dataset)} rows, not {split['rows']}")
        return dataset
    except (Damaged, OSError) as error:
        raise DataError(
            f"the tokenised folder {folder} is damaged: {error}",
            place="--tokenized_dir",
            fix=_MAKE_AGAIN,
            kind="damaged file",
        ) from error


def _index(folder: Path) -> dict[str, Any]:
    """What the index of a folder says."""
    try:
        about = unsealed(read_text(folder / INDEX))
        # Looked at now, so that a damaged index is one message and not a KeyError an hour later.
        _ = about["tokenizer"]
        for split in about["splits"].values():
            _ = (
                {**split["settings"]},
                Counts(**split["counts"]),
                [*split["files"]],
                split["key"],
                {**split["contents"]},
                split["rows"],
            )
        return about
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        cause = f"{folder / INDEX} is damaged: {error}"
        raise DataError(cause, place="--tokenized_dir", fix=_MAKE_AGAIN, kind="damaged file") from error


def settings_of(folder: Path) -> dict[str, Any]:
    """The settings of the encoder that made the training records of a folder; {} where none are written down."""
    if not (folder / INDEX).is_file():
        return {}
    found: dict[str, Any] = _index(folder)["splits"].get("train", {}).get("settings", {})
    return found


def check_index(folders: Sequence[str], encoder: Encoder) -> None:
    """Refuse folders of `hftune tokenize` that this run would have tokenised differently; others cannot be checked.

    Raises:
        DataError: Naming the folder and what differs.
    """
    for folder in map(Path, folders):
        if (folder / INDEX).is_file():
            _check(_index(folder), "train", encoder, folder)


def held_out_within(folders: Sequence[str]) -> str | None:
    """The folders of `hftune tokenize` among some that hold a split "eval", with commas between them."""
    found = [folder for folder in folders if (Path(folder) / INDEX).is_file() and (Path(folder) / "eval").is_dir()]
    return ",".join(found) or None


def _check(about: dict[str, Any], split: str, encoder: Encoder, folder: Path) -> None:
    """Refuse records that this run would have tokenised differently."""
    if split not in about["splits"]:
        raise DataError(f"{folder} holds no split {split}", place="--tokenized_dir", fix=_MAKE_AGAIN)
    wanted, found = encoder.settings(), about["splits"][split]["settings"]
    names = [name for name in wanted if found.get(name) != wanted[name]]
    if names:
        differences = ", ".join(f"{name} {found.get(name)} (this run: {wanted[name]})" for name in names)
        raise DataError(f"the records in {folder} were tokenised with {differences}", place="--tokenized_dir", fix=_FIX)
    if about["tokenizer"] != tokenizer_key(encoder.tokenizer):
        raise DataError(
            f"the records in {folder} were tokenised with another tokenizer or chat template",
            place="--tokenized_dir",
            fix=_FIX,
        )
