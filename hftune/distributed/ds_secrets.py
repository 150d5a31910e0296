"""Secrets in a DeepSpeed config: they reach their tracker through the environment, and nothing else."""

from __future__ import annotations

import copy
import os
from typing import Any

from hftune.distributed.ds_keys import DsConfig
from hftune.secret_names import says_secret
from hftune.secrets import learn_config

_VARIABLES: dict[tuple[str, ...], str] = {("comet", "api_key"): "COMET_API_KEY"}
"""What reads a secret from a variable as well as from the config."""


def take_secrets_out(config: DsConfig) -> tuple[DsConfig, list[str]]:
    """A copy without secrets, and what became of them, a line each.

    DeepSpeed writes its config into every checkpoint and into its log.
    """
    learn_config(config)
    clean, said = copy.deepcopy(config), list[str]()
    _take(clean, (), said)
    return clean, said


def _take(block: dict[str, Any], place: tuple[str, ...], said: list[str]) -> None:
    for name in list(block):
        value, path = block[name], (*place, str(name))
        if isinstance(value, str) and value and says_secret(str(name)):
            del block[name]
            variable = _VARIABLES.get(path)
            if variable is not None:
                os.environ[variable] = value
            what = f"kept in {variable}" if variable else "left out, as DeepSpeed does not know it"
            said.append(f"DeepSpeed config: {'.'.join(path)} is a secret and is {what}")
        elif isinstance(value, dict):
            _take(value, path, said)
        elif isinstance(value, list):
            for number, entry in enumerate(value):
                if isinstance(entry, dict):
                    _take(entry, (*path, str(number)), said)
