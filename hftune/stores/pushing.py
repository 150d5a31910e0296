"""Where a finished result is uploaded to: Hugging Face's Hub, ModelScope, or a folder of an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hftune.publishing.uploads import push_folder, what_to_upload
from hftune.stores import modelscope, objects
from hftune.stores.located import chosen_hub


def push(
    folder: Path,
    repo: str,
    *,
    hub: str | None,
    token: str | None,
    message: str,
    private: bool | None = None,
    revision: str | None = None,
    flag: str = "--hub_model_id",
) -> str:
    """Upload the model in a folder; the repository is made where it is missing.

    Args:
        repo: OWNER/NAME, or the URL of a folder in a store.
        hub: As `--hub` says.

    Returns:
        Where it is.

    Raises:
        ArgumentError: There is no model to upload, a file holds a secret, or it is not taken.
    """
    if objects.is_url(repo):
        objects.upload(what_to_upload(folder, repo, flag), folder, repo, flag)
        return repo
    how: dict[str, Any] = {"token": token, "private": private, "revision": revision, "flag": flag}
    if chosen_hub(hub) == "modelscope":
        modelscope.upload(what_to_upload(folder, repo, flag), folder, repo, commit_message=message, **how)
        return f"{repo} on ModelScope"
    return push_folder(folder, repo, message=message, **how)
