"""Keep secrets of a DeepSpeed config out of files and logs; trackers get theirs through the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from hftune.distributed.ds_config import DsConfig
from hftune.secrets import learn_config, redact, says_secret

_VARIABLES: dict[tuple[str, ...], str] = {("comet", "api_key"): "COMET_API_KEY"}
"""What reads a secret from a variable as well as from the config."""


def remove_secrets(config: DsConfig) -> tuple[DsConfig, list[str]]:
    """A copy of the config without secrets, and a line on each that was removed.

    Left out is whatever stands under a key that says so, at any depth and of any type; in other texts, such as URLs,
    secrets become `***`. DeepSpeed writes its config into every checkpoint and into its log.
    """
    learn_config(config)  # so that `redact` knows them wherever they are quoted, here and later
    said = list[str]()
    return dict(_kept(config, (), said)), said


def _kept(block: DsConfig, place: tuple[str, ...], said: list[str]) -> Iterator[tuple[str, Any]]:
    for name, value in block.items():
        path = (*place, str(name))
        if says_secret(str(name)) and _is_secret_value(value):
            variable = _VARIABLES.get(path) if isinstance(value, str) else None
            if variable is not None:
                # Before the tracker starts, which asks this variable where the config is silent.
                os.environ[variable] = value
            what = f"kept in {variable}" if variable else "left out, as DeepSpeed does not know it"
            said.append(f"DeepSpeed config: {'.'.join(path)} is a secret and is {what}")
        else:
            # A key may quote a secret as well, such as a URL with a password.
            yield (redact(name) if isinstance(name, str) else name), _clean(value, path, said)


def _is_secret_value(value: object) -> bool:
    """Whether a value could be a secret: not where it is empty, None, True or False."""
    return bool(value) and not isinstance(value, bool)


def _clean(value: Any, path: tuple[str, ...], said: list[str]) -> Any:
    if isinstance(value, dict):
        return dict(_kept(value, path, said))
    if isinstance(value, list):
        return [_clean(entry, (*path, str(number)), said) for number, entry in enumerate(value)]
    if not isinstance(value, str) or redact(value) == value:
        return value
    said.append(f"DeepSpeed config: {'.'.join(path)} holds a secret, which is left out")
    return redact(value)
