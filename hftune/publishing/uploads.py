"""What of a folder is uploaded to the Hub: a list of what belongs to a model, and nothing else.

Left out are training_args.bin and every other pickle, optimizer states, checkpoints, logs, samples and answers,
`hftune.json` (it names folders of this machine), hidden files, links, and whatever else happens to lie there.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hftune.constants import TOKENIZER_FILES
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.publishing.ownership import read_own_manifest, recorded_files
from hftune.secrets import redact

_WEIGHTS = re.compile(r"(model|adapter_model)(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")
_NAMED = {
    *("config.json", "generation_config.json", "adapter_config.json", "quantization_config.json"),
    *(*TOKENIZER_FILES, "preprocessor_config.json", "processor_config.json"),
    *("README.md", "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE", "NOTICE.md", "NOTICE.txt"),
}
_RECORDED = re.compile(r"[^/]+\.(gguf|py)|Modelfile")
"""Names that an export chooses, and a model's own code: they go only where the manifest records them."""
_TEMPLATES = "additional_chat_templates"
_TEXTS = {".json", ".jinja", ".md", ".txt", ".py", ""}
_LARGEST_TEXT = 1 << 22
_SHOWN = 5


@dataclass
class Chosen:
    """The files of a folder, sorted; names are relative to it.

    Args:
        files: They belong to the model.
        left_out: They do not; a folder that is left out as a whole is one name with a slash behind it.
    """

    files: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def files_to_upload(folder: Path) -> Chosen:
    """Sort what is in a folder into what belongs on the Hub and what does not; links are never followed."""
    chosen, recorded = Chosen(), {*recorded_files(read_own_manifest(folder) or {})}
    for entry in sorted(folder.iterdir()):
        if entry.name == _TEMPLATES and _kind(entry) == stat.S_IFDIR:
            for file in sorted(entry.iterdir()):
                whole = f"{_TEMPLATES}/{file.name}"
                fits = file.suffix == ".jinja" and not file.name.startswith(".") and _kind(file) == stat.S_IFREG
                (chosen.files if fits else chosen.left_out).append(whole)
        elif _kind(entry) == stat.S_IFREG and _belongs(entry.name, recorded):
            chosen.files.append(entry.name)
        else:
            chosen.left_out.append(f"{entry.name}/" if _kind(entry) == stat.S_IFDIR else entry.name)
    return chosen


def push_folder(
    folder: Path,
    repo: str,
    *,
    token: str | None,
    message: str,
    private: bool | None = None,
    revision: str | None = None,
    flag: str = "--hub_model_id",
) -> str:
    """Upload the model in a folder in one commit; the repository is made where it is missing.

    Returns:
        Where the commit is.

    Raises:
        ArgumentError: There is no model to upload, a file holds a secret, or the Hub does not take it.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    names = what_to_upload(folder, repo, flag)
    api = HfApi(token=token)
    later = f"hftune export hub --model_name_or_path {folder} --hub_model_id {repo}"
    with hub_errors(repo, flag, f"; the result is in {folder}, and `{later}` uploads it"):
        # `exist_ok`: pushing again adds a commit.
        api.create_repo(repo, private=private, exist_ok=True)
        operations = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(folder / name)) for name in names]
        # One commit: nobody can load a model of which half has arrived.
        done = api.create_commit(repo, operations, commit_message=redact(message), revision=revision)
    return str(done)


def what_to_upload(folder: Path, repo: str, flag: str) -> list[str]:
    """The names of what is uploaded of a folder; said, with what is left out.

    Raises:
        ArgumentError: There is no model to upload, or a file holds a secret.
    """
    chosen = files_to_upload(folder)
    if not any(name.endswith((".safetensors", ".gguf")) for name in chosen.files):
        raise ArgumentError(f"{folder} holds no weights to upload", place=flag, fix="give the folder of a result")
    # All of them before the first byte leaves: a secret in the last file stops the upload.
    for file in (folder / name for name in chosen.files):
        if file.suffix in _TEXTS and file.stat().st_size <= _LARGEST_TEXT:
            # Bytes that are no UTF-8 survive the way to text.
            text = file.read_bytes().decode(errors="surrogateescape")
            if redact(text) != text:
                fix = "take it out; nothing was uploaded"
                raise ArgumentError(f"{file} holds a secret, or what looks like one", place=str(file), fix=fix)
    _say(folder, repo, chosen)
    return chosen.files


@contextmanager
def hub_errors(repo: str, flag: str, more: str = "") -> Iterator[None]:
    """Turn errors of the Hub, or of the way there, in the block into hftune's one message.

    Raises:
        ArgumentError: The Hub cannot be reached, or refuses; `more` says what remains to be done.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    try:
        yield
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        raise ArgumentError(
            f"the Hub did not take {repo}: {(str(error).splitlines() or [type(error).__name__])[0]}",
            place=flag,
            fix=f"log in with `hf auth login`, and give a name as OWNER/NAME to which you may write{more}",
        ) from error


def _say(folder: Path, repo: str, chosen: Chosen) -> None:
    left = chosen.left_out
    more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    tail = f"; {len(left)} other(s) do not belong there: {', '.join(left[:_SHOWN])}{more}" if left else ""
    notice(f"{len(chosen.files)} files of {folder} go to {repo}{tail}")


def _belongs(name: str, recorded: set[str]) -> bool:
    if name.startswith("."):
        return False
    if name in _NAMED or _WEIGHTS.fullmatch(name):
        return True
    return _RECORDED.fullmatch(name) is not None and name in recorded


def _kind(path: Path) -> int:
    """The file type of the name itself: a link is a link."""
    return stat.S_IFMT(os.lstat(path).st_mode)
