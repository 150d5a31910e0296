"""What to say of a path that is not there: what lies near it, and whether it may be a name on the Hub."""

from __future__ import annotations

import difflib
import os
from itertools import islice
from pathlib import Path

from hftune.errors import ArgumentError, shown

# Entries of a folder that are looked at.
_MOST = 2000
_LISTED = 6


def looks_local(name: str) -> bool:
    """Whether a name can be a path only: no name on the Hub begins or is divided like that."""
    # A name on the Hub has at most one slash, and begins with a letter or a digit.
    return Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1


def nearest_path(path: str) -> str:
    """The path there is that is written most like a missing one, in the same style; "" for none.

    Each part that is missing is looked for among the entries of the folder before it.
    """
    expanded = Path(path).expanduser()
    found = Path(expanded.anchor)
    for part in expanded.parts[1:] if expanded.anchor else expanded.parts:
        if (found / part).exists():
            found = found / part
            continue
        names = _entries(found)
        # A slip of upper and lower case is no distance at all.
        alike = {name.lower(): name for name in names}
        close = difflib.get_close_matches(part.lower(), alike, n=1)
        # The nearest one may be a link that leads nowhere, such as the very name that is not there.
        if not close or not os.path.exists(found / alike[close[0]]):
            return ""
        found = found / alike[close[0]]
    start = "./" if path.startswith("./") else ""
    return f"{start}{found}"


def path_hint(path: str, what: str) -> str:
    """What to do about a path that is not there: the nearest one, or what its folder holds; and what is wanted.

    Args:
        what: Such as "a model folder".
    """
    expanded = Path(path).expanduser()
    near = nearest_path(path)
    if near:
        return f"did you mean {near}?"
    parent = expanded.parent
    # Ends at the root or at ".", which are folders.
    while not parent.is_dir():
        parent = parent.parent
    here = f"{os.getcwd()}, where paths begin," if parent == Path() else str(parent)
    held = [name for name in _entries(parent) if not name.startswith((".", "__"))]
    # Folders, if there are any: models and data sets mostly lie in some.
    held = [f"{name}/" for name in held if (parent / name).is_dir()] or held
    listed = ", ".join(shown(name, 40) for name in held[:_LISTED]) + (", ..." if len(held) > _LISTED else "")
    return f"give {what}; {here} holds {listed or 'nothing'}"


def missing_folder(path: str | Path, flag: str, what: str) -> ArgumentError:
    """The message for a folder that is not there, or is a file."""
    if Path(path).expanduser().is_file():
        parent = Path(path).parent
        return ArgumentError(
            f"{path} is a file, where a folder is read", place=flag, fix=f"give {what}, such as its folder: {parent}"
        )
    return ArgumentError(f"there is no folder {path}", place=flag, fix=path_hint(str(path), what))


def not_an_adapter(folder: str | Path, flag: str) -> ArgumentError:
    """The message for a folder that is no adapter: it is not there, is a whole model, or is something else."""
    path = Path(folder)
    if not path.is_dir():
        return missing_folder(folder, flag, "an adapter folder: the output of a stage that ran with --use_peft")
    if (path / "config.json").is_file():
        cause = f"{folder} holds a whole model, not an adapter (no adapter_config.json)"
        fix = f"leave {flag} out, and give it as --model_name_or_path {folder}"
        return ArgumentError(cause, place=flag, fix=fix)
    inside = sorted(path.glob("*/adapter_config.json"))
    return ArgumentError(
        f"{folder} holds no adapter (adapter_config.json is missing)",
        place=flag,
        fix=f"give {inside[-1].parent}" if inside else "give the output folder of a stage that ran with --use_peft",
    )


def cannot_load(name: str, error: Exception | str, flag: str, what: str, *, offline: bool = False) -> ArgumentError:
    """The message for what could be loaded neither from a folder nor from the Hub.

    Args:
        name: A folder, or what may be a name on the Hub.
        error: Why it cannot be loaded.
        what: What is looked for, such as "config".
        offline: The Hub must not be asked.
    """
    said = first_line(error) if isinstance(error, Exception) else error
    if Path(name).is_dir():
        return ArgumentError(
            f"no {what} could be loaded from {name}: {said}",
            place=flag,
            fix="copy or download the folder again, or give another model folder or a name on the Hub",
        )
    if looks_local(name):
        return missing_folder(name, flag, "a model folder or a name on the Hub")
    why = _why_not_from_the_hub(said, offline)
    otherwise = "take away HF_HUB_OFFLINE=1 and --offline to have it downloaded" if _offline(offline) else ""
    fixes = [path_hint(name, "the path of a folder"), otherwise or "or give a name on the Hub that can be reached"]
    return ArgumentError(
        f"there is no folder {name} here, and as a name on the Hub it cannot be had: {why}",
        place=flag,
        fix="; ".join(fixes),
    )


def first_line(error: Exception) -> str:
    """What an exception says, as much of it as a message can quote."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _offline(asked: bool) -> bool:
    # Imported here: this module is read at every start, the Hub's client takes a while to import.
    from huggingface_hub import constants

    return asked or bool(constants.HF_HUB_OFFLINE)


def _why_not_from_the_hub(said: str, offline: bool) -> str:
    if _offline(offline):
        return "the Hub is not asked (HF_HUB_OFFLINE=1 or --offline), and it is not in the cache"
    # transformers' words for it (5.17 to 5.23), followed by advice about its own cache; and those of the Hub's client.
    if "couldn't connect" in said or "appropriate cached snapshot" in said:
        return "the Hub does not answer, and it is not in the cache"
    return said


def _entries(folder: Path) -> list[str]:
    """The names in a folder, sorted; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in islice(entries, _MOST))
    except OSError:
        return []
