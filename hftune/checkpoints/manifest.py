"""`hftune.json`: where an output folder came from, so that the next command need not be told again.

Written atomically and last: a folder whose manifest says `complete` holds a finished result.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

from hftune.constants import MANIFEST_NAME
from hftune.errors import ManifestError

Manifest = dict[str, Any]

RUNNING, CHECKPOINT, COMPLETE = "running", "checkpoint", "complete"
_LIBRARIES = ("torch", "transformers", "trl", "peft", "deepspeed", "accelerate", "datasets", "bitsandbytes", "hftune")
_SECRETS = ("token", "secret", "password")


def read_manifest(folder: str | Path | None) -> Manifest | None:
    """The manifest of a folder, or None where there is none.

    Raises:
        ManifestError: The file is there and cannot be read.
    """
    file = Path(folder or "") / MANIFEST_NAME
    if not folder or not file.is_file():
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ManifestError(
            f"the manifest is not valid JSON: {error.msg}",
            place=f"{file}:{error.lineno}",
            fix="mend or delete it; without it the folder is treated like any other model",
        ) from error


def write_manifest(folder: str | Path, manifest: Manifest) -> Path:
    """Write the manifest beside the weights, whole or not at all."""
    file = Path(folder) / MANIFEST_NAME
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_suffix(f".tmp{os.getpid()}")
    aside.write_text(json.dumps(manifest, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    os.replace(aside, file)
    return file


def is_complete(folder: str | Path | None) -> bool:
    """Whether a folder holds a finished result of hftune."""
    manifest = read_manifest(folder)
    return manifest is not None and manifest.get("status") == COMPLETE


def text_fingerprint(text: str) -> str:
    """Sixteen hex digits of a text's sha256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def library_versions() -> dict[str, str]:
    """Versions of everything that shapes a result, Python included."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def without_secrets(values: dict[str, Any]) -> dict[str, Any]:
    """Arguments fit to be written down: None where a name ends in a word for a secret.

    Only whole last words count: `hub_token` is a secret, `pad_token`, `eos_token` and `max_tokens` are not.
    """
    return {name: None if _is_secret(name) else value for name, value in values.items()}


def command_without_secrets(argv: list[str]) -> list[str]:
    """A command line fit to be written down."""
    shown, hide = [], False
    for token in argv:
        name, _, value = token.lstrip("-").partition("=")
        secret = token.startswith("--") and name in ("hub_token", "hf_hub_token")
        shown.append(f"--{name}=***" if secret and value else "***" if hide else token)
        hide = secret and not value
    return shown


def _is_secret(name: str) -> bool:
    if name in ("pad_token", "eos_token", "bos_token"):
        return False
    return name.rsplit("_", 1)[-1] in _SECRETS or "api_key" in name
