"""Where a finished result is uploaded to: Hugging Face's Hub, ModelScope, or a folder of an object store."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from hftune.errors import ArgumentError
from hftune.publishing.uploads import push_folder, what_to_upload
from hftune.stores import modelscope, objects
from hftune.stores.located import chosen_hub

_LATER = "; later: hftune export hub --model_name_or_path {} --hub_model_id {} --hub modelscope"


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
    if chosen_hub(hub) == "modelscope":
        return _to_modelscope(folder, repo, token=token, message=message, private=private, revision=revision, flag=flag)
    return push_folder(folder, repo, token=token, message=message, private=private, revision=revision, flag=flag)


def make_modelscope_repo(repo: str, token: str | None, private: bool | None, flag: str) -> Any:
    """Make sure that a repository is there, and return the client: a run that cannot push should not train first."""
    api = modelscope.client(flag, token)
    with modelscope.errors_of_modelscope(f"ModelScope did not take {repo}", flag):
        if not api.repo_exists(repo, "model"):
            api.create_repo(repo, "model", visibility="private" if private else "public")
    return api


def _to_modelscope(
    folder: Path,
    repo: str,
    *,
    token: str | None,
    message: str,
    private: bool | None,
    revision: str | None,
    flag: str,
) -> str:
    contents = what_to_upload(folder, repo, flag)
    # Its client uploads files as they lie there.
    if any(isinstance(content, bytes) for content in contents.values()):
        raise ArgumentError("README.md holds a secret, or what looks like one", place=flag, fix="take it out")
    api = make_modelscope_repo(repo, token, private, flag)
    more = _LATER.format(folder, repo)
    # Nothing is kept in the folder for a later upload: it is a result, whose files are counted.
    failed = modelscope.errors_of_modelscope(f"ModelScope did not take {repo}", flag, more)
    with failed, contextlib.redirect_stdout(io.StringIO()):  # it prints a report of its own
        api.upload_folder(
            *(repo, "model", folder),
            commit_message=message,
            revision=revision,
            allow_patterns=[*contents],
            use_cache=False,
            disable_tqdm=True,
        )
    return f"{repo} on ModelScope"
