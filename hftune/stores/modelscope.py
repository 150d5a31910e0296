"""Models and data sets of ModelScope by name, through its own client and that one's cache."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hftune.errors import ArgumentError, shown
from hftune.secrets import redact

_LATER = "; later: hftune export hub --model_name_or_path {} --hub_model_id {} --hub modelscope"


@functools.cache
def client(flag: str, token: str | None = None) -> Any:
    """The client of ModelScope; its login, address and cache are those of `modelscope login` and its variables.

    Raises:
        ArgumentError: It is not installed.
    """
    try:
        from modelscope_hub import HubApi
    except ImportError as error:
        raise ArgumentError(
            "--hub modelscope needs ModelScope's own client, which is not installed",
            place=flag,
            fix="pip install modelscope-hub (newer versions of modelscope bring it); or leave --hub out",
        ) from error
    logging.getLogger("modelscope_hub").setLevel(logging.WARNING)
    return HubApi(token=token)


@functools.cache
def download(name: str, kind: str, flag: str, revision: str | None = None, offline: bool = False) -> Path:
    """The folder of a repository on this machine, downloaded where it is not in ModelScope's cache.

    Args:
        kind: model or dataset.
        revision: Branch, tag or commit; None for the default branch.
        offline: From the cache alone.

    Raises:
        ArgumentError: The client is missing, or ModelScope cannot be reached or has no such name.
    """
    api = client(flag)
    with _errors(f"{name} cannot be had from ModelScope", flag):
        return Path(api.download_repo(name, kind, revision=revision, local_files_only=offline))


def make_repository(repo: str, token: str | None, private: bool | None, flag: str) -> Any:
    """Make sure that a repository is there, and return the client: a run that cannot push should not train first."""
    api = client(flag, token)
    with _errors(f"ModelScope did not take {repo}", flag):
        if not api.repo_exists(repo, "model"):
            api.create_repo(repo, "model", visibility="private" if private else "public")
    return api


def upload(
    contents: dict[str, str | bytes],
    folder: Path,
    repo: str,
    *,
    token: str | None,
    private: bool | None,
    flag: str,
    **how: Any,
) -> None:
    """Upload files of a folder; `how` has the message and the revision.

    Raises:
        ArgumentError: ModelScope does not take them, or a card had to be changed: its client uploads files as they are.
    """
    if any(isinstance(content, bytes) for content in contents.values()):
        raise ArgumentError("README.md holds a secret", place=flag, fix="take it out")
    api = make_repository(repo, token, private, flag)
    # It prints a report of its own, and would keep notes in the folder, which is a result whose files are counted.
    failed = _errors(f"ModelScope did not take {repo}", flag, _LATER.format(folder, repo))
    with failed, contextlib.redirect_stdout(io.StringIO()):
        api.upload_folder(repo, "model", folder, allow_patterns=[*contents], use_cache=False, disable_tqdm=True, **how)


@contextlib.contextmanager
def _errors(what: str, flag: str, more: str = "") -> Iterator[None]:
    """Turn errors of ModelScope, or of the way there, in the block into one message."""
    from modelscope_hub.errors import HubError

    try:
        yield
    except (HubError, OSError, ValueError) as error:
        words = shown(redact(str(error)), 200) or type(error).__name__
        fix = f"check the name OWNER/NAME and the connection; `modelscope login` for what is private{more}"
        raise ArgumentError(f"{what}: {words}", place=flag, fix=fix) from error
