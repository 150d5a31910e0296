"""Models and data sets of ModelScope by name, through its own client and that one's cache."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hftune.errors import ArgumentError, shown
from hftune.secrets import redact


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
    with errors_of_modelscope(f"{name} cannot be had from ModelScope", flag):
        return Path(api.download_repo(name, kind, revision=revision, local_files_only=offline))


@contextmanager
def errors_of_modelscope(what: str, flag: str, more: str = "") -> Iterator[None]:
    """Turn errors of ModelScope, or of the way there, in the block into one message."""
    from modelscope_hub.errors import HubError

    try:
        yield
    except (HubError, OSError, ValueError) as error:
        words = shown(redact(str(error)), 200) or type(error).__name__
        fix = f"check the name OWNER/NAME and the connection; `modelscope login` for what is private{more}"
        raise ArgumentError(f"{what}: {words}", place=flag, fix=fix) from error
