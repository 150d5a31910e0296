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


@contextlib.contextmanager
def client(what: str, flag: str, token: str | None = None, more: str = "") -> Iterator[Any]:
    """The client of ModelScope; its errors in the block, or those of the way there, become one message.

    Login, address and cache are those of `modelscope login` and its variables.

    Args:
        what: What has failed then.
        more: What else there is to do.

    Raises:
        ArgumentError: It is not installed, or has failed.
    """
    try:
        from modelscope_hub import HubApi
        from modelscope_hub.errors import HubError
    except ImportError as error:
        fix = "pip install modelscope-hub (newer versions of modelscope bring it); or leave --hub out"
        cause = "--hub modelscope needs ModelScope's own client, which is not installed"
        raise ArgumentError(cause, place=flag, fix=fix) from error
    logging.getLogger("modelscope_hub").setLevel(logging.WARNING)
    try:
        yield HubApi(token=token)
    except (HubError, OSError, ValueError) as error:
        words = shown(redact(str(error)), 200) or type(error).__name__
        fix = f"check the name OWNER/NAME and the connection; `modelscope login` for what is private{more}"
        raise ArgumentError(f"{what}: {words}", place=flag, fix=fix) from error


@functools.cache
def download(name: str, kind: str, flag: str, revision: str | None = None, offline: bool = False) -> Path:
    """The folder of a repository (kind: model or dataset) here, downloaded where it is not in ModelScope's cache."""
    with client(f"{name} cannot be had from ModelScope", flag) as api:
        return Path(api.download_repo(name, kind, revision=revision, local_files_only=offline))


def make_repository(repo: str, token: str | None, private: bool | None, flag: str) -> None:
    """Make sure that a repository is there: a run that cannot push should not train first."""
    with client(f"ModelScope did not take {repo}", flag, token) as api:
        if not api.repo_exists(repo, "model"):
            api.create_repo(repo, "model", visibility="private" if private else "public")


def upload(
    names: list[str],
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
        ArgumentError: As `client`.
    """
    make_repository(repo, token, private, flag)
    later = f"; later: hftune export hub --model_name_or_path {folder} --hub_model_id {repo} --hub modelscope"
    # It prints a report of its own, and would keep notes in the folder, which is a result whose files are counted.
    with (
        client(f"ModelScope did not take {repo}", flag, token, later) as api,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        api.upload_folder(repo, "model", folder, allow_patterns=names, use_cache=False, disable_tqdm=True, **how)
