"""Where a base is: a folder, a name on the Hub, or something that only transformers reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hftune.checkpoints.folder_checks import folder_problems
from hftune.errors import raise_together
from hftune.path_hints import cannot_load
from hftune.weight_files import weight_files

_PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.py"]
_ELSEWHERE = ["consolidated*", "original/*", "onnx/*", "gguf/*"]


@dataclass(frozen=True)
class Located:
    """A base on this machine.

    Args:
        name: As it was given.
        folder: Its files.
        unknown: Why its weights cannot be read tensor by tensor; None: they can.
        gguf_file: The file in `folder`, where the base is one.
    """

    name: str
    folder: Path
    unknown: str | None = None
    gguf_file: str | None = None


def locate(name: str, revision: str | None = None, gguf_file: str | None = None) -> Located:
    """Find a base, downloading it where it is a name on the Hub.

    Raises:
        UserError: Nothing there, nothing that can be reached, or files that changed after hftune wrote them.
    """
    path = Path(name)
    if path.suffix == ".gguf" and path.is_file():
        return Located(name, path.parent, f"{path.name} is a GGUF file", path.name)
    folder = path if path.is_dir() else from_hub(name, revision, flag="--base_model_name_or_path", patterns=_PATTERNS)
    if path.is_dir():
        raise_together(folder_problems(folder, "--base_model_name_or_path", whole=True))
    if gguf_file:
        return Located(name, folder, f"{gguf_file} is a GGUF file", gguf_file)
    if not weight_files(folder):
        return Located(name, folder, "it has no safetensors files")
    return Located(name, folder)


def from_hub(name: str, revision: str | None, *, flag: str, patterns: list[str]) -> Path:
    """A snapshot of a Hub repository on this machine.

    Raises:
        ArgumentError: It cannot be reached, or there is no such name.
    """
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(name, revision=revision, allow_patterns=patterns, ignore_patterns=_ELSEWHERE)
    except (OSError, ValueError) as error:
        raise cannot_load(name, error, flag, "model") from error
    return Path(found)
